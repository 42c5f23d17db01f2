/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* connect(2): 127.0.0.x and ::1 lead to the guest's own loopback, and the source is one of its own addresses. */
#ifndef PANDO_CONNECT_H
#define PANDO_CONNECT_H

#include "address.h"

/* Turns a destination into what it stands for and finds the source for it; the answer is an error or 0. */
static __always_inline int route4(const struct guest *g, __u32 *to, __u32 *from)
{
	if (*to == 0)
		*to = LOOPBACK4;
	if (is_loop4(*to)) {
		if (!is_named_loop4(*to))
			return ECONNREFUSED;
		*to = g->loop4 | last4(*to);
		*from = g->loop4 | bpf_htonl(1);
		return 0;
	}
	*from = owns4(g, *to) ? *to : source4(g, *to);
	return *from ? 0 : ENETUNREACH;
}

static __always_inline int route6(const struct guest *g, struct ip6 *to, struct ip6 *from)
{
	if (is_any6(to) || is_one6(to)) {
		*to = g->loop6;
		*from = g->loop6;
		return 0;
	}
	if (is_loop6(to))
		return ECONNREFUSED;
	/* It would be sent from the host's own link-local address. */
	if (is_link_local6(to))
		return ENETUNREACH;
	if (owns6(g, to)) {
		*from = *to;
		return 0;
	}
	return source6(g, to, from) ? 0 : ENETUNREACH;
}

/*
 * A datagram socket is at its source address from now on, though it never was bound, and stays there when it is
 * connected to nobody any more. A connection needs no note: it goes with its address.
 */
static __always_inline int settle(struct bpf_sock *sk, const struct guest *g)
{
	if (sk->protocol == IPPROTO_UDP)
		take_note(sk, g->id, NOTE_BOUND);
	return 1;
}

SEC("cgroup/connect4")
int pando_connect4(struct bpf_sock_addr *ctx)
{
	struct guest *g = me();
	struct sockaddr_in source = { .sin_family = AF_INET };
	__u32 to = ctx->user_ip4, from;
	int error;

	if (!g || !ctx->sk)
		return deny(ENETUNREACH);
	error = route4(g, &to, &from);
	if (error)
		return deny(error);
	ctx->user_ip4 = to;
	if (ctx->sk->src_ip4)
		return 1;
	source.sin_addr.s_addr = from;
	/*
	 * It fails for a datagram socket that has sent before and so has a port: that one would go on with the host's
	 * address.
	 */
	return bpf_bind(ctx, (struct sockaddr *)&source, sizeof(source)) ? deny(EINVAL) : settle(ctx->sk, g);
}

SEC("cgroup/connect6")
int pando_connect6(struct bpf_sock_addr *ctx)
{
	struct guest *g = me();
	struct sockaddr_in6 source = { .sin6_family = AF_INET6 };
	struct ip6 to, from = {};
	int error;

	if (!g || !ctx->sk)
		return deny(ENETUNREACH);
	READ6(to, ctx->user_ip6);
	if (is_mapped6(&to)) {
		__u32 to4 = to.word[3], from4 = 0;

		error = route4(g, &to4, &from4);
		to = mapped6(to4);
		from = mapped6(from4);
	} else {
		error = route6(g, &to, &from);
	}
	if (error)
		return deny(error);
	WRITE6(ctx->user_ip6, to);
	if (ctx->sk->src_ip6[0] | ctx->sk->src_ip6[1] | ctx->sk->src_ip6[2] | ctx->sk->src_ip6[3])
		return 1;
	__builtin_memcpy(&source.sin6_addr, &from, sizeof(from));
	return bpf_bind(ctx, (struct sockaddr *)&source, sizeof(source)) ? deny(EINVAL) : settle(ctx->sk, g);
}

#endif
