/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Packets of connections whose owner is away: they are dropped on their way in, on every device, so that nobody tells
 * the other end that there is no such connection. It sends them again until the owner is back. src/withhold.rs writes
 * which they are.
 */
#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define IN_SIX 0xffff

/* Addresses and ports are in network order; IPv4 is mapped into IPv6. */
struct connection {
	__u32 owner[4], other[4];
	__u16 owner_port, other_port;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct connection);
	__type(value, __u8);
} withheld SEC(".maps");

static __always_inline int judge(struct __sk_buff *skb, struct connection *c, __u32 at)
{
	__u16 ports[2];

	if (bpf_skb_load_bytes_relative(skb, at, ports, sizeof(ports), BPF_HDR_START_NET))
		return TC_ACT_UNSPEC;
	c->other_port = ports[0];
	c->owner_port = ports[1];
	return bpf_map_lookup_elem(&withheld, c) ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

SEC("tc")
int pando_withhold(struct __sk_buff *skb)
{
	struct connection c = {};

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes_relative(skb, 0, &ip, sizeof(ip), BPF_HDR_START_NET) || ip.protocol != IPPROTO_TCP)
			return TC_ACT_UNSPEC;
		c.owner[2] = c.other[2] = bpf_htonl(IN_SIX);
		c.owner[3] = ip.daddr;
		c.other[3] = ip.saddr;
		return judge(skb, &c, ip.ihl * 4);
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes_relative(skb, 0, &ip, sizeof(ip), BPF_HDR_START_NET) || ip.nexthdr != IPPROTO_TCP)
			return TC_ACT_UNSPEC;
		__builtin_memcpy(c.owner, &ip.daddr, sizeof(c.owner));
		__builtin_memcpy(c.other, &ip.saddr, sizeof(c.other));
		return judge(skb, &c, sizeof(ip));
	}
	return TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "GPL";
