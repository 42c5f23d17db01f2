/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Host mode: a server of the host's that listens on ANY holds its port on the host's addresses alone, so that guests
 * can have the same port on theirs. Like a guest's it is bound to an anchor, an address that nobody else has; unlike a
 * guest's it is found by lookups themselves (lookup.h) and not by steering, since the host must be reached by devices
 * that came a moment ago, and with no Pando running.
 *
 * Connections' servers only. One of datagrams that is on ANY hears broadcast and multicast too, and at an anchor would
 * not.
 */
#ifndef PANDO_HOST_H
#define PANDO_HOST_H

#include "bind.h"

/* The guest that is none: the host. */
#define HOST 0
#define HOST_ANCHOR4 bpf_htonl(0x7f400001) /* 127.64.0.1 */

/* Where a server of the host's waits: a port, by one family. */
struct door {
	__u16 port; /* in network order */
	__u16 family;
};

struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 16384);
	__type(key, struct door);
	__type(value, __u64);
} doors SEC(".maps");

/*
 * The cookie of the network namespace that is the host's: its control groups hold processes of others as well. 0 is
 * none's.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} home SEC(".maps");

struct sock_common___served {
	unsigned char skc_reuse : 4;
	unsigned char skc_reuseport : 1;
} __attribute__((preserve_access_index));
struct sock___served {
	struct sock_common___served __sk_common;
} __attribute__((preserve_access_index));
struct tcp_sock___served {
	_Bool is_mptcp;
} __attribute__((preserve_access_index));

static __always_inline int is_at_home(void *ctx)
{
	__u32 zero = 0;
	__u64 *cookie = bpf_map_lookup_elem(&home, &zero);

	return cookie && *cookie && *cookie == bpf_get_netns_cookie(ctx);
}

/*
 * Whether what binds ANY is going to be a server, as far as one can know: servers ask for SO_REUSEADDR, or could not be
 * started again; clients that want a port of their own do not. Those who share a port (SO_REUSEPORT), and subflows of
 * MPTCP, which cannot be kept in a map, are left alone.
 */
static __always_inline int is_a_server(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct sock___served *full;

	if (!sk || sk->type != SOCK_STREAM || sk->protocol != IPPROTO_TCP || !ctx->user_port || noted(sk))
		return 0;
	full = (void *)bpf_skc_to_tcp_sock(sk);
	if (!full || !BPF_CORE_READ_BITFIELD_PROBED(full, __sk_common.skc_reuse) ||
	    BPF_CORE_READ_BITFIELD_PROBED(full, __sk_common.skc_reuseport))
		return 0;
	if (bpf_core_field_exists(((struct tcp_sock___served *)full)->is_mptcp) && BPF_CORE_READ((struct tcp_sock___served *)full, is_mptcp))
		return 0;
	return is_at_home(ctx);
}

SEC("cgroup/bind4")
int pando_h_bind4(struct bpf_sock_addr *ctx)
{
	if (ctx->user_ip4 || !is_a_server(ctx))
		return 1;
	ctx->user_ip4 = HOST_ANCHOR4;
	take_note(ctx->sk, HOST, NOTE_ANY);
	return 1;
}

/* One of IPv6 alone is anchored at ::1, where it would hold its port in any case. */
SEC("cgroup/bind6")
int pando_h_bind6(struct bpf_sock_addr *ctx)
{
	struct ip6 a, one = { { 0, 0, 0, bpf_htonl(1) } };
	__u32 flags;

	READ6(a, ctx->user_ip6);
	if ((!is_any6(&a) && (!is_mapped6(&a) || a.word[3])) || !is_a_server(ctx))
		return 1;
	flags = is_any6(&a) ? any6_flags(ctx->sk) : NOTE_ANY;
	a = flags & NOTE_V6ONLY ? one : mapped6(HOST_ANCHOR4);
	WRITE6(ctx->user_ip6, a);
	take_note(ctx->sk, HOST, flags);
	return 1;
}

static __always_inline __u32 noted_of_host(struct bpf_sock *sk)
{
	struct note *note = sk ? bpf_sk_storage_get(&notes, sk, 0, 0) : 0;

	return note && note->guest == HOST ? note->flags : 0;
}

/*
 * Who was taken for a server and connects would do so from the anchor: at home that works, and elsewhere nobody would
 * answer.
 */
SEC("cgroup/connect4")
int pando_h_connect4(struct bpf_sock_addr *ctx)
{
	return noted_of_host(ctx->sk) && !is_loop4(ctx->user_ip4) && ctx->user_ip4 ? deny(EADDRNOTAVAIL) : 1;
}

SEC("cgroup/connect6")
int pando_h_connect6(struct bpf_sock_addr *ctx)
{
	struct ip6 to;

	READ6(to, ctx->user_ip6);
	return noted_of_host(ctx->sk) && !is_one6(&to) && !is_any6(&to) && !(is_mapped6(&to) && is_loop4(to.word[3])) ?
		       deny(EADDRNOTAVAIL) :
		       1;
}

SEC("cgroup/getsockname4")
int pando_h_name4(struct bpf_sock_addr *ctx)
{
	if (noted_of_host(ctx->sk) && !ctx->sk->dst_port)
		ctx->user_ip4 = 0;
	return 1;
}

SEC("cgroup/getsockname6")
int pando_h_name6(struct bpf_sock_addr *ctx)
{
	struct ip6 any = {};

	if (noted_of_host(ctx->sk) && !ctx->sk->dst_port)
		WRITE6(ctx->user_ip6, any);
	return 1;
}

/* From here on it is found. */
SEC("sockops")
int pando_h_listen(struct bpf_sock_ops *ctx)
{
	struct door door = {};
	__u32 flags;

	if (ctx->op != BPF_SOCK_OPS_TCP_LISTEN_CB)
		return 1;
	flags = noted_of_host(ctx->sk);
	if (!flags)
		return 1;
	door.port = bpf_htons(ctx->local_port);
	if (!(flags & NOTE_V6ONLY)) {
		door.family = AF_INET;
		bpf_sock_hash_update(ctx, &doors, &door, BPF_ANY);
	}
	if (ctx->family == AF_INET6) {
		door.family = AF_INET6;
		bpf_sock_hash_update(ctx, &doors, &door, BPF_ANY);
	}
	return 1;
}

#endif
