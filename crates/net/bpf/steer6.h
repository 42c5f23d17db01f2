/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Included by steer.h. */

/* The guests at an IPv6 address; `one` is room for an answer that is in no map. */
static __always_inline struct owners *owners_of6(const struct ip6 *to, struct owners *one)
{
	if (!is_loop6(to))
		return bpf_map_lookup_elem(&owners6, to);
	*one = (struct owners){ .count = 1, .id = { bpf_ntohl(to->word[3]) >> 16 } };
	return one;
}

static __always_inline struct bpf_sock *find_at6(struct __sk_buff *skb, const struct arrival *a, const struct owners *owners,
						 struct bpf_sock_tuple *tuple)
{
	struct bpf_sock *sk = look(skb, a->tcp, tuple, sizeof(tuple->ipv6));
	struct ip6 bound = {};

	if (!sk)
		return 0;
	if (!a->tcp && peer_port(sk))
		return sk;
	bound_to6(sk, &bound);
	if (same6(&bound, (struct ip6 *)tuple->ipv6.daddr) && !is_foreign(sk, owners))
		return sk;
	if (is_any6(&bound) && is_theirs(sk, owners, NOTE_AUTO, 0))
		return sk;
	bpf_sk_release(sk);
	return 0;
}

/* An ANY of IPv6 alone lies at the guest's IPv6 anchor, one of both kinds at its IPv4 anchor. */
static __noinline struct bpf_sock *find_any6(struct __sk_buff *skb, struct arrival *a, struct owners *owners, struct bpf_sock_tuple *tuple)
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
		for (int turn = 0; turn < 2 + 2 * FORMER; turn++) {
			__u32 other = turn & 1, before = (turn >> 1) - 1;
			__u32 anchor4 = turn < 2 ? g->anchor4 : g->former4[before & (FORMER - 1)];
			struct ip6 anchor = turn < 2 ? g->anchor6 : g->former6[before & (FORMER - 1)];
			struct bpf_sock *sk;

			if (other)
				anchor = mapped6(anchor4);
			if (other ? !anchor4 : is_any6(&anchor))
				continue;
			__builtin_memcpy(tuple->ipv6.daddr, &anchor, sizeof(anchor));
			sk = look(skb, a->tcp, tuple, sizeof(tuple->ipv6));
			if (!sk)
				continue;
			if (is_theirs(sk, owners, NOTE_ANY, other ? NOTE_V6ONLY : 0))
				return sk;
			bpf_sk_release(sk);
		}
	}
	return 0;
}

static __always_inline __u32 connection6(struct __sk_buff *skb, struct bpf_sock_tuple *tuple)
{
	struct bpf_sock *sk = bpf_skc_lookup_tcp(skb, tuple, sizeof(tuple->ipv6), BPF_F_CURRENT_NETNS, 0);
	__u32 state;

	if (!sk)
		return 0;
	state = sk->state;
	bpf_sk_release(sk);
	return state;
}

static __always_inline int assign6(struct __sk_buff *skb, const struct arrival *a, struct bpf_sock *sk, struct bpf_sock_tuple *real)
{
	int in_the_way = 0;

	if (a->tcp) {
		in_the_way = a->flags == SYN && connection6(skb, real) == BPF_TCP_TIME_WAIT;
		expect_cookies(sk);
	}
	if (in_the_way || a->first) {
		struct place place = { .port = a->to, .family = AF_INET6, .protocol = a->tcp ? IPPROTO_TCP : IPPROTO_UDP };

		__builtin_memcpy(&place.address, real->ipv6.daddr, sizeof(place.address));
		bpf_map_update_elem(&known, &place, sk, BPF_ANY);
	}
	if (!in_the_way)
		bpf_sk_assign(skb, sk, 0);
	bpf_sk_release(sk);
	return PASS;
}

/* Where the ports lie and whose they are; 0 where it is neither TCP nor UDP, or not the first fragment. */
static __always_inline __u32 transport6(struct __sk_buff *skb, const struct ipv6hdr *ip, struct arrival *a)
{
	struct {
		__u8 next, reserved;
		__u16 offset;
		__u32 number;
	} fragment;
	__u8 next = ip->nexthdr;
	__u32 at = sizeof(*ip);

	if (next == NEXTHDR_FRAGMENT) {
		if (bpf_skb_load_bytes_relative(skb, at, &fragment, sizeof(fragment), BPF_HDR_START_NET) ||
		    fragment.offset & bpf_htons(0xfff8))
			return 0;
		next = fragment.next;
		a->first = !!(fragment.offset & bpf_htons(1));
		at += sizeof(fragment);
	}
	a->tcp = next == IPPROTO_TCP;
	return a->tcp || next == IPPROTO_UDP ? at : 0;
}

/* What a packet begins with, where no other header follows the first. */
struct beginning6 {
	struct ipv6hdr ip;
	__u8 transport[14];
};

static __always_inline int read_transport6(struct __sk_buff *skb, const struct ipv6hdr *ip, const struct beginning6 *head, struct arrival *a)
{
	__u32 at = transport6(skb, ip, a);

	if (!at || !head || at != sizeof(*ip))
		return at && read_ports(skb, at, a);
	take_ports(head->transport, a);
	return 1;
}

static __always_inline int steer6(struct __sk_buff *skb)
{
	struct bpf_sock_tuple real, tuple;
	struct owners one, *owners;
	struct arrival a = {};
	struct bpf_sock *sk;
	struct beginning6 *head = in_one_piece(skb, sizeof(*head));
	struct ipv6hdr ip;
	struct ip6 to;

	if (!head && bpf_skb_load_bytes_relative(skb, 0, &ip, sizeof(ip), BPF_HDR_START_NET))
		return PASS;
	if (head)
		ip = head->ip;
	__builtin_memcpy(&to, &ip.daddr, sizeof(to));
	/* Private loopback addresses never come from a wire. */
	if (is_loop6(&to) && skb->ifindex != LOOPBACK_DEVICE)
		return TC_ACT_SHOT;
	if (!read_transport6(skb, &ip, head, &a))
		return PASS;
	if (a.tcp && a.flags != SYN && (a.flags != ACK || !cookies_are_out()))
		return PASS;
	__builtin_memcpy(real.ipv6.saddr, &ip.saddr, sizeof(real.ipv6.saddr));
	__builtin_memcpy(real.ipv6.daddr, &ip.daddr, sizeof(real.ipv6.daddr));
	real.ipv6.sport = a.from;
	real.ipv6.dport = a.to;
	tuple.ipv6 = real.ipv6;
	if (a.tcp) {
		__builtin_memset(tuple.ipv6.saddr, 0, sizeof(tuple.ipv6.saddr));
		tuple.ipv6.sport = 0;
	}
	owners = owners_of6(&to, &one);
	if (!owners)
		return keep_from_strays(skb, &a, &tuple, sizeof(tuple.ipv6));
	if (a.tcp && a.flags == ACK && connection6(skb, &real))
		return PASS;
	if (a.tcp)
		a.first = 0;
	sk = find_at6(skb, &a, owners, &tuple);
	if (!sk)
		sk = find_any6(skb, &a, owners, &tuple);
	return sk ? assign6(skb, &a, sk, &real) : PASS;
}
