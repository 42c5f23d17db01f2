/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* sendmsg(2) of datagram sockets that name a destination or, by IP_PKTINFO, a source. */
#ifndef PANDO_SEND_H
#define PANDO_SEND_H

#include "connect.h"

/* A socket that never bound itself has just been given a port on the real ANY: replies to it are known by this note. */
static __always_inline void note_auto(struct bpf_sock *sk, const struct guest *g)
{
	__u32 port = bpf_htons(sk->src_port), one = 1;

	take_note(sk, g->id, NOTE_AUTO);
	bpf_map_update_elem(&stray, &port, &one, BPF_ANY);
}

SEC("cgroup/sendmsg4")
int pando_sendmsg4(struct bpf_sock_addr *ctx)
{
	struct guest *g = me();
	struct bpf_sock *sk = ctx->sk;
	__u32 to = ctx->user_ip4, from = ctx->msg_src_ip4, flags, free, chosen;
	int error;

	if (!g || !sk)
		return deny(ENETUNREACH);
	flags = noted(sk);
	if (!flags && !sk->src_ip4)
		note_auto(sk, g);
	error = 0;
	/* 127.0.0.6 is what the kernel puts for a socket that is bound to an IPv6 address. */
	if (is_named_loop4(from))
		from = g->loop4 | last4(from);
	/* The anchor of ANY is no choice of the guest's. */
	free = !from || (flags & NOTE_ANY && (from == g->anchor4 || in_loop4(g, from) || !owns4(g, from)));
	if (in_loop4(g, to))
		chosen = g->loop4 | bpf_htonl(1);
	else
		error = route4(g, &to, &chosen);
	if (error)
		return deny(error);
	if (free)
		from = chosen;
	else if (!in_loop4(g, from) && !owns4(g, from))
		return deny(EADDRNOTAVAIL);
	ctx->user_ip4 = to;
	ctx->msg_src_ip4 = from;
	return 1;
}

SEC("cgroup/sendmsg6")
int pando_sendmsg6(struct bpf_sock_addr *ctx)
{
	struct guest *g = me();
	struct bpf_sock *sk = ctx->sk;
	struct ip6 to, from, chosen = {};
	__u32 flags, free;
	int error = 0;

	if (!g || !sk)
		return deny(ENETUNREACH);
	READ6(to, ctx->user_ip6);
	READ6(from, ctx->msg_src_ip6);
	flags = noted(sk);
	if (!flags && !(sk->src_ip6[0] | sk->src_ip6[1] | sk->src_ip6[2] | sk->src_ip6[3]))
		note_auto(sk, g);
	if (is_one6(&from))
		from = g->loop6;
	free = is_any6(&from) || is_mapped6(&from) || (flags & NOTE_ANY && (same6(&from, &g->anchor6) || same6(&from, &g->loop6)));
	if (same6(&to, &g->loop6))
		chosen = g->loop6;
	else
		error = route6(g, &to, &chosen);
	if (error)
		return deny(error);
	if (free)
		from = chosen;
	else if (!same6(&from, &g->loop6) && !owns6(g, &from))
		return deny(EADDRNOTAVAIL);
	WRITE6(ctx->user_ip6, to);
	WRITE6(ctx->msg_src_ip6, from);
	return 1;
}

#endif
