/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * socket(2) and listen(2) in a guest: the kinds whose every packet the other hooks see, and no socket without a note.
 */
#ifndef PANDO_CREATE_H
#define PANDO_CREATE_H

#include "guest.h"

/*
 * Raw sockets name any source. Echo sockets (SOCK_DGRAM of ICMP), SCTP, MPTCP and UDP-Lite reach no sendmsg hook of
 * ours, or bind by ways of their own, and would send from the host's address.
 */
SEC("cgroup/sock_create")
int pando_create(struct bpf_sock *sk)
{
	if (sk->type == SOCK_STREAM && sk->protocol == IPPROTO_TCP)
		return 1;
	if (sk->type == SOCK_DGRAM && sk->protocol == IPPROTO_UDP)
		return 1;
	if (sk->type != SOCK_RAW)
		bpf_set_retval(-EPROTONOSUPPORT);
	return 0;
}

/*
 * listen(2) without bind(2) gets a port on the real ANY, and no hook can refuse it: it is noted, and steering keeps the
 * host's traffic from it.
 */
SEC("sockops")
int pando_listen(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct guest *g;
	__u32 port, one = 1;

	if (ctx->op != BPF_SOCK_OPS_TCP_LISTEN_CB || !sk || noted(sk))
		return 1;
	g = me();
	if (!g)
		return 1;
	port = bpf_htons(ctx->local_port);
	take_note(sk, g->id, NOTE_AUTO);
	bpf_map_update_elem(&stray, &port, &one, BPF_ANY);
	return 1;
}

#endif
