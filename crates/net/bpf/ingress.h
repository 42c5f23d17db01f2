/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Whatever way a packet found a guest's socket, it is for an address that is the guest's now, or it is dropped. Some
 * sockets no hook sees being bound: the kernel gives a port to one that tries to send and fails, or that was connected
 * before. They are on the real ANY, or at an address from before.
 *
 * A connection that stands has an address that was the guest's when it was made, and is ended when that is lost: of TCP
 * only listeners are asked.
 */
#ifndef PANDO_INGRESS_H
#define PANDO_INGRESS_H

#include <linux/ip.h>
#include <linux/ipv6.h>
#include "address.h"

#define DROP 0
#define DELIVER 1

static __always_inline int is_connection(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;

	return sk && sk->state != BPF_TCP_LISTEN;
}

static __always_inline int is_for_guest4(__u32 to)
{
	struct guest *g = me();

	return g && (in_loop4(g, to) || owns4(g, to));
}

static __always_inline int is_for_guest6(const struct ip6 *to)
{
	struct guest *g = me();

	return g && (same6(to, &g->loop6) || owns6(g, to));
}

SEC("cgroup_skb/ingress")
int pando_ingress(struct __sk_buff *skb)
{
	/* Here a packet begins with the network's header, which the stack has brought into one piece. */
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = data;

		if (data + sizeof(*ip) > end)
			return DROP;
		if (ip->protocol == IPPROTO_TCP && is_connection(skb))
			return DELIVER;
		return is_for_guest4(ip->daddr) ? DELIVER : DROP;
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = data;
		struct ip6 to;

		if (data + sizeof(*ip) > end)
			return DROP;
		if (ip->nexthdr == IPPROTO_TCP && is_connection(skb))
			return DELIVER;
		__builtin_memcpy(&to, &ip->daddr, sizeof(to));
		return is_for_guest6(&to) ? DELIVER : DROP;
	}
	return DROP;
}

#endif
