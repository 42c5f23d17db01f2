/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What the programs know of guests, and what they note of sockets. src/shared/layout.rs writes the same. */
#ifndef PANDO_GUEST_H
#define PANDO_GUEST_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_core_read.h>

#define MOST_ADDRESSES 16
#define MOST_OWNERS 8
#define FORMER 2

/* Addresses and masks are in network order throughout. */
struct ip6 {
	__u32 word[4];
};

struct network4 {
	__u32 address, mask;
};

struct network6 {
	struct ip6 address, mask;
};

struct guest {
	__u32 id;
	__u32 root;		     /* the host's uid of the guest's root: it may bind low ports */
	__u32 loop4;		     /* its private part of 127.0.0.0/8: a /24 */
	struct ip6 loop6;	     /* what ::1 is for it */
	__u32 anchor4;		     /* where bind(ANY) really binds: its first address, else loop4 + 1 */
	struct ip6 anchor6;
	__u32 former4[FORMER];	     /* anchors that sockets from before may still be bound to */
	struct ip6 former6[FORMER];
	__u32 count4, count6;
	struct network4 own4[MOST_ADDRESSES];
	struct network6 own6[MOST_ADDRESSES];
};

/* Whose an address is: one guest's, or that of the few which share it. */
struct owners {
	__u32 count;
	__u32 id[MOST_OWNERS];
};

/* A socket that a guest bound. */
struct note {
	__u32 guest;
	__u32 flags;
};

#define NOTE_ANY 1	/* it asked for ANY, and is bound to the anchor */
#define NOTE_AUTO 2	/* it never bound itself: the kernel gave it a port on the real ANY */
#define NOTE_V6ONLY 4	/* with ANY: no IPv4 */
#define NOTE_BOUND 8	/* bound to one address */

struct {
	__uint(type, BPF_MAP_TYPE_CGROUP_STORAGE);
	__type(key, __u64);
	__type(value, __u64);
} self SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 32768);
	__type(key, __u32);
	__type(value, struct guest);
} guests SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct owners);
} owners4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct ip6);
	__type(value, struct owners);
} owners6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct note);
} notes SEC(".maps");

/*
 * Ports on which a guest has a socket on the real ANY, in network order: only for those are packets to the host's own
 * addresses looked at.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, __u32);
} stray SEC(".maps");

#define EINVAL 22
#define EPROTONOSUPPORT 93
#define EADDRNOTAVAIL 99
#define ENETUNREACH 101
#define ECONNREFUSED 111
#define AF_INET 2
#define AF_INET6 10
#define SOCK_STREAM 1
#define SOCK_DGRAM 2
#define SOCK_RAW 3

/* The guest whose cgroup the running program is attached to. */
static __always_inline struct guest *me(void)
{
	__u64 *number = bpf_get_local_storage(&self, 0);
	__u32 id = *number;

	return bpf_map_lookup_elem(&guests, &id);
}

static __always_inline int deny(int error)
{
	bpf_set_retval(-error);
	return 0;
}

static __always_inline void take_note(struct bpf_sock *sk, __u32 guest, __u32 flags)
{
	struct note *note = bpf_sk_storage_get(&notes, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);

	if (note) {
		note->guest = guest;
		note->flags = flags;
	}
}

/* What is noted of a socket, as flags; 0 where nothing is. */
static __always_inline __u32 noted(struct bpf_sock *sk)
{
	struct note *note = bpf_sk_storage_get(&notes, sk, 0, 0);

	return note ? note->flags : 0;
}

#endif
