/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Included by steer.h. */

/* The guests at an IPv4 address; `one` is room for an answer that is in no map. */
static __always_inline struct owners *owners_of4(__u32 to, struct owners *one)
{
	if (!is_loop4(to))
		return bpf_map_lookup_elem(&owners4, &to);
	/* 127.64.0.0 on: the guest's number is the address's middle. */
	*one = (struct owners){ .count = 1, .id = { (bpf_ntohl(to) >> 8 & 0xffff) - 0x4000 } };
	return (bpf_ntohl(to) & 0x00ffffff) < 0x00400000 ? 0 : one;
}

/* A socket that one of the owners has at the address itself. */
static __always_inline struct bpf_sock *find_at4(struct __sk_buff *skb, const struct arrival *a, const struct owners *owners,
						 struct bpf_sock_tuple *tuple)
{
	struct bpf_sock *sk = look(skb, a->tcp, tuple, sizeof(tuple->ipv4));
	__u32 bound;

	if (!sk)
		return 0;
	if (!a->tcp && peer_port(sk))
		return sk;
	bound = bound_to4(sk);
	if (bound == tuple->ipv4.daddr && !is_foreign(sk, owners))
		return sk;
	if (!bound && is_theirs(sk, owners, NOTE_AUTO, 0))
		return sk;
	bpf_sk_release(sk);
	return 0;
}

/* A socket that a guest bound to ANY, at the guest's anchor or at one from before. */
static __noinline struct bpf_sock *find_any4(struct __sk_buff *skb, struct arrival *a, struct owners *owners, struct bpf_sock_tuple *tuple)
{
	if (!a || !owners || !tuple)
		return 0;
	for (int i = 0; i < MOST_OWNERS; i++) {
		__u32 id = owners->id[i];
		struct guest *g;

		if (i >= owners->count)
			break;
		g = bpf_map_lookup_elem(&guests, &id);
		if (!g)
			continue;
		for (int turn = -1; turn < FORMER; turn++) {
			__u32 anchor = turn < 0 ? g->anchor4 : g->former4[turn & (FORMER - 1)];
			struct bpf_sock *sk;

			if (!anchor)
				continue;
			tuple->ipv4.daddr = anchor;
			sk = look(skb, a->tcp, tuple, sizeof(tuple->ipv4));
			if (!sk)
				continue;
			if (bound_to4(sk) == anchor && is_theirs(sk, owners, NOTE_ANY, 0))
				return sk;
			bpf_sk_release(sk);
		}
	}
	return 0;
}

/* The state of the connection that a packet would belong to, and 0 without one. */
static __always_inline __u32 connection4(struct __sk_buff *skb, struct bpf_sock_tuple *tuple)
{
	struct bpf_sock *sk = bpf_skc_lookup_tcp(skb, tuple, sizeof(tuple->ipv4), BPF_F_CURRENT_NETNS, 0);
	__u32 state;

	if (!sk)
		return 0;
	state = sk->state;
	bpf_sk_release(sk);
	return state;
}

static __always_inline int assign4(struct __sk_buff *skb, const struct arrival *a, struct bpf_sock *sk, struct bpf_sock_tuple *real)
{
	int in_the_way = 0;

	if (a->tcp) {
		/* One in TIME_WAIT decides itself whether it gives way, and then asks for the listener. */
		in_the_way = a->flags == SYN && connection4(skb, real) == BPF_TCP_TIME_WAIT;
		expect_cookies(sk);
	}
	if (in_the_way || a->first) {
		struct place place = { .port = a->to, .family = AF_INET, .protocol = a->tcp ? IPPROTO_TCP : IPPROTO_UDP };

		place.address.word[0] = real->ipv4.daddr;
		bpf_map_update_elem(&known, &place, sk, BPF_ANY);
	}
	if (!in_the_way)
		bpf_sk_assign(skb, sk, 0);
	bpf_sk_release(sk);
	return PASS;
}

/* What a packet begins with, where the IP header has no options. */
struct beginning4 {
	struct iphdr ip;
	__u8 transport[14];
};

/* Reads the headers; 0 where steering has no say. */
static __always_inline int read_headers4(struct __sk_buff *skb, struct iphdr *ip, struct arrival *a)
{
	struct beginning4 *head = in_one_piece(skb, sizeof(*head));

	if (head)
		*ip = head->ip;
	else if (bpf_skb_load_bytes_relative(skb, 0, ip, sizeof(*ip), BPF_HDR_START_NET))
		return 0;
	a->tcp = ip->protocol == IPPROTO_TCP;
	if ((!a->tcp && ip->protocol != IPPROTO_UDP) || ip->frag_off & bpf_htons(0x1fff))
		return 0;
	if (!head || ip->ihl != sizeof(*ip) / 4)
		return read_ports(skb, ip->ihl * 4, a);
	take_ports(head->transport, a);
	return 1;
}

static __always_inline int steer4(struct __sk_buff *skb)
{
	struct bpf_sock_tuple real, tuple;
	struct owners one, *owners;
	struct arrival a = {};
	struct bpf_sock *sk;
	struct iphdr ip;

	if (!read_headers4(skb, &ip, &a))
		return PASS;
	if (a.tcp && a.flags != SYN && (a.flags != ACK || !cookies_are_out()))
		return PASS;
	real.ipv4.saddr = ip.saddr;
	real.ipv4.sport = a.from;
	real.ipv4.daddr = ip.daddr;
	real.ipv4.dport = a.to;
	tuple.ipv4 = real.ipv4;
	if (a.tcp) {
		/* Listeners only: the connection itself, even a dead one, would hide them. */
		tuple.ipv4.saddr = 0;
		tuple.ipv4.sport = 0;
	}
	owners = owners_of4(ip.daddr, &one);
	if (!owners)
		return keep_from_strays(skb, &a, &tuple, sizeof(tuple.ipv4));
	if (a.tcp && a.flags == ACK && connection4(skb, &real))
		return PASS;
	a.first = !a.tcp && ip.frag_off & bpf_htons(0x2000);
	sk = find_at4(skb, &a, owners, &tuple);
	if (!sk)
		sk = find_any4(skb, &a, owners, &tuple);
	return sk ? assign4(skb, &a, sk, &real) : PASS;
}
