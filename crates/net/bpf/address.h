/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What kind of address one is, and which of its own a guest sends from. */
#ifndef PANDO_ADDRESS_H
#define PANDO_ADDRESS_H

#include "guest.h"

#define LOOPBACK4 bpf_htonl(0x7f000001)

/* 127.0.0.0/8; of it 127.0.0.0/24 is what a guest may name, and 127.64.0.0 on are the guests' private parts. */
static __always_inline int is_loop4(__u32 a) { return (a & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000); }
static __always_inline int is_named_loop4(__u32 a) { return (a & bpf_htonl(0xffffff00)) == bpf_htonl(0x7f000000); }
static __always_inline __u32 last4(__u32 a) { return a & bpf_htonl(0xff); }
static __always_inline int in_loop4(const struct guest *g, __u32 a) { return (a & bpf_htonl(0xffffff00)) == g->loop4; }

/* fd7f:6c62::/64: the guests' private loopback addresses. */
static __always_inline int is_loop6(const struct ip6 *a) { return a->word[0] == bpf_htonl(0xfd7f6c62) && !a->word[1]; }
static __always_inline int is_any6(const struct ip6 *a) { return !(a->word[0] | a->word[1] | a->word[2] | a->word[3]); }
static __always_inline int is_one6(const struct ip6 *a)
{
	return !(a->word[0] | a->word[1] | a->word[2]) && a->word[3] == bpf_htonl(1);
}
static __always_inline int is_mapped6(const struct ip6 *a)
{
	return !(a->word[0] | a->word[1]) && a->word[2] == bpf_htonl(0xffff);
}
static __always_inline int is_link_local6(const struct ip6 *a)
{
	return (a->word[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000);
}
static __always_inline int same6(const struct ip6 *a, const struct ip6 *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] && a->word[3] == b->word[3];
}
static __always_inline struct ip6 mapped6(__u32 a)
{
	return (struct ip6){ { 0, 0, bpf_htonl(0xffff), a } };
}

static __always_inline int is_among(const struct owners *owners, __u32 guest)
{
#pragma unroll
	for (int i = 0; i < MOST_OWNERS; i++)
		if (i < owners->count && owners->id[i] == guest)
			return 1;
	return 0;
}

static __always_inline int owns4(const struct guest *g, __u32 a)
{
	struct owners *owners = bpf_map_lookup_elem(&owners4, &a);

	return owners && is_among(owners, g->id);
}

static __always_inline int owns6(const struct guest *g, const struct ip6 *a)
{
	struct owners *owners = bpf_map_lookup_elem(&owners6, a);

	return owners && is_among(owners, g->id);
}

/* The own address to send to `to` from: one of the same network, else the first; 0 without any. */
static __always_inline __u32 source4(const struct guest *g, __u32 to)
{
	for (int i = 0; i < MOST_ADDRESSES; i++) {
		if (i >= g->count4)
			break;
		if (!((g->own4[i].address ^ to) & g->own4[i].mask))
			return g->own4[i].address;
	}
	return g->count4 ? g->own4[0].address : 0;
}

static __always_inline int source6(const struct guest *g, const struct ip6 *to, struct ip6 *from)
{
	for (int i = 0; i < MOST_ADDRESSES; i++) {
		const struct network6 *own = &g->own6[i];

		if (i >= g->count6)
			break;
		if (!((own->address.word[0] ^ to->word[0]) & own->mask.word[0]) &&
		    !((own->address.word[1] ^ to->word[1]) & own->mask.word[1]) &&
		    !((own->address.word[2] ^ to->word[2]) & own->mask.word[2]) &&
		    !((own->address.word[3] ^ to->word[3]) & own->mask.word[3])) {
			*from = own->address;
			return 1;
		}
	}
	*from = g->own6[0].address;
	return g->count6;
}

/* The context's words may only be touched one by one; without the barriers the compiler merges them. */
#define READ6(to, field)                    \
	do {                                \
		(to).word[0] = (field)[0];  \
		(to).word[1] = (field)[1];  \
		(to).word[2] = (field)[2];  \
		(to).word[3] = (field)[3];  \
	} while (0)

#define WRITE6(field, from)                                                                             \
	do {                                                                                            \
		__u32 w0 = (from).word[0], w1 = (from).word[1], w2 = (from).word[2], w3 = (from).word[3]; \
		barrier_var(w0);                                                                        \
		barrier_var(w1);                                                                        \
		barrier_var(w2);                                                                        \
		barrier_var(w3);                                                                        \
		(field)[0] = w0;                                                                        \
		(field)[1] = w1;                                                                        \
		(field)[2] = w2;                                                                        \
		(field)[3] = w3;                                                                        \
	} while (0)

#endif
