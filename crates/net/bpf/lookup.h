/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The stack looks for a listener by itself: for a guest's address it must not find one that listens on the real ANY,
 * which is the host's. Here arrive the packets that steering assigned to nobody.
 */
#ifndef PANDO_LOOKUP_H
#define PANDO_LOOKUP_H

#include "address.h"
#include "host.h"
#include "known.h"

/*
 * An address that is the host's: whoever of it listens on ANY waits at an anchor, if there is host mode, or is found by
 * the stack.
 */
static __always_inline int of_host(struct bpf_sk_lookup *ctx)
{
	struct door door = { .port = bpf_htons(ctx->local_port), .family = ctx->family };
	struct bpf_sock *sk;

	if (ctx->protocol != IPPROTO_TCP)
		return SK_PASS;
	sk = bpf_map_lookup_elem(&doors, &door);
	if (!sk)
		return SK_PASS;
	bpf_sk_assign(ctx, sk, 0);
	bpf_sk_release(sk);
	return SK_PASS;
}

static __always_inline int only_known(struct bpf_sk_lookup *ctx, struct place *place)
{
	struct bpf_sock *sk;

	place->port = bpf_htons(ctx->local_port);
	place->family = ctx->family;
	place->protocol = ctx->protocol;
	sk = bpf_map_lookup_elem(&known, place);
	if (!sk)
		return SK_DROP;
	bpf_sk_assign(ctx, sk, 0);
	bpf_sk_release(sk);
	return SK_PASS;
}

SEC("sk_lookup")
int pando_lookup(struct bpf_sk_lookup *ctx)
{
	__u32 zero = 0, *own = bpf_map_lookup_elem(&own_look, &zero);
	struct place place = {};

	if (own && *own)
		return SK_PASS;
	if (ctx->family == AF_INET) {
		__u32 to = ctx->local_ip4, id = (bpf_ntohl(to) >> 8 & 0xffff) - 0x4000;

		place.address.word[0] = to;
		/* Other parts of 127.0.0.0/8 are the host's, or those of guests of a Pando with another root. */
		if (is_loop4(to) ? !bpf_map_lookup_elem(&guests, &id) : !bpf_map_lookup_elem(&owners4, &to))
			return of_host(ctx);
		return only_known(ctx, &place);
	}
	READ6(place.address, ctx->local_ip6);
	if (is_loop6(&place.address)) {
		__u32 id = bpf_ntohl(place.address.word[3]) >> 16;

		return bpf_map_lookup_elem(&guests, &id) ? only_known(ctx, &place) : SK_PASS;
	}
	return bpf_map_lookup_elem(&owners6, &place.address) ? only_known(ctx, &place) : of_host(ctx);
}

#endif
