/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Incoming packets, on every device: a packet to a guest's address finds the guest's sockets and no others. What is
 * bound to that very address the stack would find by itself; what the guest bound to ANY lies at its anchor, and the
 * packet is assigned to it here.
 *
 * Of TCP only packets that open a connection are looked at: for all others the stack knows the connection.
 */
#ifndef PANDO_STEER_H
#define PANDO_STEER_H

#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include "address.h"
#include "known.h"

#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define NEXTHDR_FRAGMENT 44
#define LOOPBACK_DEVICE 1
#define FIN 0x01
#define SYN 0x02
#define RST 0x04
#define ACK 0x10
/* The next program decides, and at the end the stack. */
#define PASS TC_ACT_UNSPEC

/* What is known of a packet. */
struct arrival {
	__u32 tcp;
	__u32 flags;	  /* of TCP */
	__u32 first;	  /* the first of several fragments of a datagram */
	__u16 from, to;	  /* ports, in network order */
};

/* The kernel's own packet; the loader finds where the field really lies. */
struct sk_buff {
	__u16 mac_len;
} __attribute__((preserve_access_index));

/* Since Linux 6.2. The verifier makes it no call. */
extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym;

/* The longest header of a link that is reckoned with. */
#define MOST_BEFORE 255

/*
 * The network's header, if that many bytes lie in one piece from there on, as they do in all but a few packets; else 0,
 * and they have to be copied, by calls that cost more than all else that is done with most packets. For programs on a
 * device the kernel puts the header of the link, as long as it says, back before it.
 */
static __always_inline void *in_one_piece(struct __sk_buff *skb, __u32 size)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 before = ((struct sk_buff *)bpf_cast_to_kern_ctx(skb))->mac_len;

	if (before > MOST_BEFORE)
		return 0;
	data += before;
	return data + size <= end ? data : 0;
}

static __always_inline void take_ports(const __u8 *head, struct arrival *a)
{
	a->from = *(__u16 *)&head[0];
	a->to = *(__u16 *)&head[2];
	if (a->tcp)
		a->flags = head[13] & (FIN | SYN | RST | ACK);
}

/* Reads ports and flags; 0 where the packet is cut short. */
static __always_inline int read_ports(struct __sk_buff *skb, __u32 at, struct arrival *a)
{
	__u8 head[14];

	if (bpf_skb_load_bytes_relative(skb, at, head, a->tcp ? 14 : 4, BPF_HDR_START_NET))
		return 0;
	take_ports(head, a);
	return 1;
}

static __always_inline struct bpf_sock *look(struct __sk_buff *skb, int tcp, struct bpf_sock_tuple *tuple, __u32 size)
{
	__u32 zero = 0, *own = bpf_map_lookup_elem(&own_look, &zero);
	struct bpf_sock *sk;

	if (!own)
		return 0;
	/* The program that guards lookups (lookup.h) lets ours through to the plain tables. */
	*own = 1;
	if (tcp)
		sk = bpf_sk_lookup_tcp(skb, tuple, size, BPF_F_CURRENT_NETNS, 0);
	else
		sk = bpf_sk_lookup_udp(skb, tuple, size, BPF_F_CURRENT_NETNS, 0);
	*own = 0;
	return sk;
}

/*
 * Volatile: the compiler would merge accesses that the verifier wants apart. A call would do as well, and cost every
 * datagram a return.
 */
static __always_inline __u32 bound_to4(struct bpf_sock *sk) { return *(volatile __u32 *)&sk->src_ip4; }
static __always_inline __u32 peer_port(struct bpf_sock *sk) { return *(volatile __be16 *)&sk->dst_port; }
static __always_inline void bound_to6(struct bpf_sock *sk, struct ip6 *a)
{
	READ6(*a, (volatile __u32 *)sk->src_ip6);
}

/* Whether a socket is one that a guest of these has, with any of the flags wanted and none of the others. */
static __noinline int is_theirs(struct bpf_sock *sk, const struct owners *owners, __u32 wanted, __u32 others)
{
	struct note *note = bpf_sk_storage_get(&notes, sk, 0, 0);

	return note && note->flags & wanted && !(note->flags & others) && is_among(owners, note->guest);
}

/* Whether a guest has it that is none of these. */
static __always_inline int is_foreign(struct bpf_sock *sk, const struct owners *owners)
{
	struct note *note = bpf_sk_storage_get(&notes, sk, 0, 0);

	return note && !is_among(owners, note->guest);
}

/* A packet to an address that is no guest's must not reach a socket that a guest has on the real ANY. */
static __always_inline int keep_from_strays(struct __sk_buff *skb, const struct arrival *a, struct bpf_sock_tuple *tuple, __u32 size)
{
	__u32 port = a->to, *has = bpf_map_lookup_elem(&stray, &port), is_auto;
	struct bpf_sock *sk;

	if (!has || !*has || (a->tcp && a->flags != SYN))
		return PASS;
	sk = look(skb, a->tcp, tuple, size);
	if (!sk)
		return PASS;
	is_auto = noted(sk) & NOTE_AUTO && !peer_port(sk);
	bpf_sk_release(sk);
	return is_auto ? TC_ACT_SHOT : PASS;
}

#include "steer4.h"
#include "steer6.h"

SEC("tc")
int pando_steer(struct __sk_buff *skb)
{
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return steer4(skb);
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return steer6(skb);
	return PASS;
}

#endif
