/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * bind(2): own addresses only. ANY becomes the guest's anchor, so that it never meets another's ANY on the same port;
 * 127.0.0.x and ::1 become the guest's private loopback addresses.
 */
#ifndef PANDO_BIND_H
#define PANDO_BIND_H

#include "address.h"

/* What bind programs may answer besides 0 (denied) and 1: allowed, and without asking for CAP_NET_BIND_SERVICE. */
#define ALLOW_LOW_PORTS 3

/* The host's network is not the guest's user namespace's, so its root has no capability for low ports there. */
static __always_inline int allow_bind(const struct guest *g)
{
	return (__u32)bpf_get_current_uid_gid() == g->root ? ALLOW_LOW_PORTS : 1;
}

/* The address that one stands for, or 0 where the guest may not bind it. */
static __always_inline __u32 bound4(const struct guest *g, __u32 a)
{
	if (a == 0)
		return g->anchor4;
	if (is_loop4(a))
		return is_named_loop4(a) ? g->loop4 | last4(a) : 0;
	return owns4(g, a) ? a : 0;
}

SEC("cgroup/bind4")
int pando_bind4(struct bpf_sock_addr *ctx)
{
	struct guest *g = me();
	__u32 asked = ctx->user_ip4, bound;

	if (!g)
		return deny(EADDRNOTAVAIL);
	bound = bound4(g, asked);
	if (!bound)
		return deny(EADDRNOTAVAIL);
	ctx->user_ip4 = bound;
	if (ctx->sk)
		take_note(ctx->sk, g->id, asked ? NOTE_BOUND : NOTE_ANY);
	return allow_bind(g);
}

/* Kernel types, as far as they are read; the loader finds where the fields really lie. */
struct sock_common {
	unsigned char skc_ipv6only : 1;
} __attribute__((preserve_access_index));
struct sock {
	struct sock_common __sk_common;
} __attribute__((preserve_access_index));
struct tcp6_sock;
struct udp6_sock;

static __always_inline __u32 any6_flags(struct bpf_sock *sk)
{
	struct sock *full = 0;

	if (sk->protocol == IPPROTO_TCP)
		full = (struct sock *)bpf_skc_to_tcp6_sock(sk);
	else if (sk->protocol == IPPROTO_UDP)
		full = (struct sock *)bpf_skc_to_udp6_sock(sk);
	if (full && BPF_CORE_READ_BITFIELD_PROBED(full, __sk_common.skc_ipv6only))
		return NOTE_ANY | NOTE_V6ONLY;
	return NOTE_ANY;
}

/*
 * A dual-stack ANY is anchored at an IPv4 address: only so does it conflict with an IPv4 ANY on the same port, as it
 * must.
 */
static __always_inline struct ip6 anchor6_for(const struct guest *g, __u32 flags)
{
	return flags & NOTE_V6ONLY ? g->anchor6 : mapped6(g->anchor4);
}

SEC("cgroup/bind6")
int pando_bind6(struct bpf_sock_addr *ctx)
{
	struct guest *g = me();
	struct bpf_sock *sk = ctx->sk;
	__u32 flags = NOTE_BOUND;
	struct ip6 a;

	if (!g || !sk)
		return deny(EADDRNOTAVAIL);
	READ6(a, ctx->user_ip6);
	if (is_any6(&a)) {
		flags = any6_flags(sk);
		a = anchor6_for(g, flags);
	} else if (is_mapped6(&a)) {
		__u32 bound = bound4(g, a.word[3]);

		if (!bound)
			return deny(EADDRNOTAVAIL);
		if (!a.word[3])
			flags = NOTE_ANY;
		a.word[3] = bound;
	} else if (is_one6(&a)) {
		a = g->loop6;
	} else if (!owns6(g, &a)) {
		return deny(EADDRNOTAVAIL);
	}
	WRITE6(ctx->user_ip6, a);
	take_note(sk, g->id, flags);
	return allow_bind(g);
}

#endif
