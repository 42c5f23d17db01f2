/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What the processes of a cgroup send gets the priority by which its class of traffic is found (HTB looks a packet's
 * priority up among its classes), and what comes to them faster than they are granted is dropped. Both count.
 * src/bandwidth/tag.rs writes the grants.
 *
 * By the cgroup and not by a filter on the device: so it holds whatever address a guest sends from, and where guests
 * share one.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define LOOPBACK_DEVICE 1
#define SECOND 1000000000ULL
/* How far ahead of its rate a group may receive: room for some packets that the device has put together. */
#define AHEAD (20 * 1000 * 1000ULL)
/* How often another processor may be quicker before a packet goes unaccounted. */
#define TRIES 8

struct grant {
	__u64 class;	   /* 0: the packet keeps its priority */
	__u64 bits_in;	   /* a second; 0: as many as come */
	__u64 due;	   /* when all that was received would have come at that rate */
	__u64 sent, received, dropped;
};

struct {
	__uint(type, BPF_MAP_TYPE_CGROUP_STORAGE);
	__type(key, __u64);
	__type(value, struct grant);
} grants SEC(".maps");

SEC("cgroup_skb/egress")
int pando_tag(struct __sk_buff *skb)
{
	struct grant *grant = bpf_get_local_storage(&grants, 0);
	__u32 class = grant->class;

	if (skb->ifindex == LOOPBACK_DEVICE)
		return 1;
	__sync_fetch_and_add(&grant->sent, skb->len);
	if (class)
		skb->priority = class;
	return 1;
}

SEC("cgroup_skb/ingress")
int pando_police(struct __sk_buff *skb)
{
	struct grant *grant = bpf_get_local_storage(&grants, 0);
	__u64 now, before, due, rate = grant->bits_in, length = skb->len;

	if (skb->ifindex == LOOPBACK_DEVICE)
		return 1;
	if (!rate)
		goto take;
	now = bpf_ktime_get_ns();
	for (int i = 0; i < TRIES; i++) {
		before = grant->due;
		due = before > now ? before : now;
		if (due - now > AHEAD) {
			__sync_fetch_and_add(&grant->dropped, length);
			return 0;
		}
		if (__sync_val_compare_and_swap(&grant->due, before, due + length * 8 * SECOND / rate) == before)
			break;
	}
take:
	__sync_fetch_and_add(&grant->received, length);
	return 1;
}

char _license[] SEC("license") = "GPL";
