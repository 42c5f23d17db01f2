/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Sockets that the stack must find by itself, because it asks when steering has no say: a datagram put together from
 * fragments, a connection that takes the place of one in TIME_WAIT, the answer to a SYN cookie.
 */
#ifndef PANDO_KNOWN_H
#define PANDO_KNOWN_H

#include "guest.h"

/* Where a packet goes. IPv4 addresses stand in the first word. */
struct place {
	struct ip6 address;
	__u16 port; /* in network order */
	__u8 family;
	__u8 protocol;
};

struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 16384);
	__type(key, struct place);
	__type(value, __u64);
} known SEC(".maps");

/* Set while a steering program looks a socket up. Programs on the way of a packet do not interrupt each other. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} own_look SEC(".maps");

/*
 * Until when (nanoseconds since boot) answers to SYN cookies may come; 0: none are expected, and none are looked for.
 */
__u64 cookies_until = 0;

#define COOKIE_LIFE (120ull * 1000000000)

typedef struct {
	int counter;
} atomic_t;
struct request_sock_queue {
	atomic_t qlen;
} __attribute__((preserve_access_index));
struct inet_connection_sock {
	struct request_sock_queue icsk_accept_queue;
} __attribute__((preserve_access_index));
struct tcp_sock {
	struct inet_connection_sock inet_conn;
} __attribute__((preserve_access_index));
struct netns_ipv4 {
	__u8 sysctl_tcp_syncookies;
} __attribute__((preserve_access_index));
struct net {
	struct netns_ipv4 ipv4;
} __attribute__((preserve_access_index));
typedef struct {
	struct net *net;
} possible_net_t;
struct sock_common___listening {
	possible_net_t skc_net;
} __attribute__((preserve_access_index));
struct sock___listening {
	struct sock_common___listening __sk_common;
	__u32 sk_max_ack_backlog;
} __attribute__((preserve_access_index));

/*
 * A listener whose queue is full answers with cookies, of which it keeps nothing: the handshake's last packet then
 * finds no connection.
 */
static __always_inline void expect_cookies(struct bpf_sock *listener)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(listener);
	struct sock___listening *sk = (void *)tcp;
	__u64 now;

	if (!tcp)
		return;
	if ((__u32)BPF_CORE_READ(tcp, inet_conn.icsk_accept_queue.qlen.counter) < BPF_CORE_READ(sk, sk_max_ack_backlog) &&
	    BPF_CORE_READ(sk, __sk_common.skc_net.net, ipv4.sysctl_tcp_syncookies) != 2)
		return;
	now = bpf_ktime_get_ns();
	if (cookies_until < now + COOKIE_LIFE / 2)
		cookies_until = now + COOKIE_LIFE;
}

static __always_inline int cookies_are_out(void)
{
	return cookies_until && cookies_until > bpf_ktime_get_ns();
}

#endif
