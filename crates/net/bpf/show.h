/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What programs are told of addresses: the reverse of what bind, connect and sendmsg put in their place. These hooks
 * cannot deny. Only of a loopback address it is asked whose it is: every datagram that is received comes by here.
 */
#ifndef PANDO_SHOW_H
#define PANDO_SHOW_H

#include "address.h"

static __always_inline int show4(struct bpf_sock_addr *ctx)
{
	struct guest *g;

	if (!is_loop4(ctx->user_ip4))
		return 1;
	g = me();
	if (g && in_loop4(g, ctx->user_ip4))
		ctx->user_ip4 = bpf_htonl(0x7f000000) | last4(ctx->user_ip4);
	return 1;
}

static __always_inline int show6(struct bpf_sock_addr *ctx)
{
	struct guest *g;
	struct ip6 a;

	READ6(a, ctx->user_ip6);
	if (!is_loop6(&a) && !(is_mapped6(&a) && is_loop4(a.word[3])))
		return 1;
	g = me();
	if (!g)
		return 1;
	if (is_mapped6(&a) && in_loop4(g, a.word[3])) {
		ctx->user_ip6[3] = bpf_htonl(0x7f000000) | last4(a.word[3]);
	} else if (same6(&a, &g->loop6)) {
		struct ip6 one = { { 0, 0, 0, bpf_htonl(1) } };

		WRITE6(ctx->user_ip6, one);
	}
	return 1;
}

/* Bound to ANY, and to no peer: a peer fixes the address. */
static __always_inline int shows_any(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;

	return sk && !sk->dst_port && noted(sk) & NOTE_ANY;
}

SEC("cgroup/recvmsg4") int pando_recvmsg4(struct bpf_sock_addr *ctx) { return show4(ctx); }
SEC("cgroup/recvmsg6") int pando_recvmsg6(struct bpf_sock_addr *ctx) { return show6(ctx); }
SEC("cgroup/getpeername4") int pando_getpeername4(struct bpf_sock_addr *ctx) { return show4(ctx); }
SEC("cgroup/getpeername6") int pando_getpeername6(struct bpf_sock_addr *ctx) { return show6(ctx); }

SEC("cgroup/getsockname4")
int pando_getsockname4(struct bpf_sock_addr *ctx)
{
	if (!shows_any(ctx))
		return show4(ctx);
	ctx->user_ip4 = 0;
	return 1;
}

SEC("cgroup/getsockname6")
int pando_getsockname6(struct bpf_sock_addr *ctx)
{
	struct ip6 any = {};

	if (!shows_any(ctx))
		return show6(ctx);
	WRITE6(ctx->user_ip6, any);
	return 1;
}

#endif
