// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * What waits at a listener of a process that stands still, of TCP or of unix sockets: connections that nobody has
 * accepted, and what each has received. No descriptor leads to them, and to accept one would take it off its program.
 * It is run for every open file of one process, and tells of the listener that is asked for. See
 * src/bpf/accept_queue.rs.
 *
 * What a connection has received lies in pages, of which the kernel has the descriptions (struct page). Where a page is
 * in the kernel's memory follows from where its description is: both lie in order, one by one number apart from the
 * other. That number is the same for the kernel's whole life. It is found at a page of which both are known: one that
 * objects are allocated from. The reader tries it with something that it knows, before it believes anything.
 */

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;

#define OURS __attribute__((preserve_access_index))

/* The kernel's types, as far as they are needed; the loader finds the fields' places in the running kernel. */
struct list_head { struct list_head *next; } OURS;
struct page { unsigned long flags; } OURS;
/* A page that objects are allocated from, since Linux 5.17 described by a type of its own. */
struct slab { struct list_head slab_list; void *freelist; unsigned int objects : 15; } OURS;
struct kmem_cache_node { struct list_head partial; } OURS;
struct kmem_cache { unsigned int size; struct list_head list; struct kmem_cache_node *node[1]; } OURS;
struct proto { struct kmem_cache *slab; } OURS;
struct in6_addr { u8 bytes[16]; };
struct sock_common {
	u32 skc_daddr, skc_rcv_saddr;
	u16 skc_dport, skc_num, skc_family;
	volatile unsigned char skc_state;
	struct proto *skc_prot;
	struct in6_addr skc_v6_daddr, skc_v6_rcv_saddr;
} OURS;
typedef struct { u32 val; } OURS kuid_t;
typedef struct { u32 val; } OURS kgid_t;
struct cred { kuid_t euid; kgid_t egid; } OURS;
struct sk_buff_head { struct sk_buff *next; u32 qlen; } OURS;
struct sock {
	struct sock_common __sk_common;
	struct sk_buff_head sk_receive_queue;
	u16 sk_protocol;
	struct cred *sk_peer_cred;
} OURS;
struct request_sock { struct request_sock *dl_next; struct sock *sk; } OURS;
struct request_sock_queue { struct request_sock *rskq_accept_head; } OURS;
struct inet_connection_sock { struct request_sock_queue icsk_accept_queue; } OURS;
struct tcp_sock { u32 copied_seq, rcv_nxt; } OURS;
struct skb_frag { u64 page; u32 length, offset; };
struct skb_shared_info { u8 nr_frags; struct sk_buff *frag_list; struct skb_frag frags[1]; } OURS;
struct sk_buff {
	struct sk_buff *next;
	struct sock *sk;
	char cb[48];
	unsigned int len, data_len;
	unsigned int end;
	unsigned char *head, *data;
} OURS;
struct tcp_skb_cb { u32 seq; } OURS;
/* What is kept of a message in a unix socket: who sent it, and which descriptors come with it. */
struct upid { int nr; } OURS;
struct pid { struct upid numbers[1]; } OURS;
struct scm_fp_list;
struct unix_skb_parms { struct pid *pid; kuid_t uid; kgid_t gid; struct scm_fp_list *fp; } OURS;
struct unix_sock { struct sk_buff *oob_skb; } OURS;
struct socket { struct sock *sk; } OURS;
struct file;
struct task_struct { int tgid; } OURS;
struct seq_file;
struct bpf_iter_meta { struct seq_file *seq; } OURS;
struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	u32 fd;
	struct file *file;
} OURS;

#define UNIX 1
#define INET 2
#define TCP 6
#define LISTENS 10
#define PAGE 4096
/* The kernel's memory begins at a multiple of this, and so does what describes it. */
#define ALIGNED (1UL << 30)

/* More caches, connections and pieces of what one has received than this are not gone through. */
#define MOST_CACHES 4096
#define MOST_WAITING 65536
#define MOST_PIECES 65536
/*
 * So many bytes are told of a piece, of all pieces, and so many connections, at once: the kernel hands on 32 KiB of an
 * open file.
 */
#define PIECE 16384
#define TOGETHER 30000
#define AT_ONCE 128

enum wish { WHERE_PAGES_ARE, WHO_WAITS, WHAT_CAME, WHICH_MESSAGES };

struct request {
	u32 fd;
	u32 wish;
	/* The first connection to tell of, or the only one. */
	u32 number;
	/* From which byte on. */
	u32 from;
	/* By which number pages are apart from what describes them. */
	u64 apart;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct request);
} requests SEC(".maps");

struct piece { u8 bytes[PIECE]; };

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct piece);
} pieces SEC(".maps");

/* A connection that waits. Addresses of IPv4 are their first four bytes. */
struct waiting {
	u8 local[16], remote[16];
	u16 family, local_port, remote_port;
	u16 state;
	/* The number of its first byte, and of the next that will come. */
	u32 first, next;
};

/* A connection of unix sockets that waits: how many messages it has received, and who connected it. */
struct unix_waiting { u32 messages, user, group; };

/* A message that a connection of unix sockets has received, or a part of a stream. */
struct message {
	u32 length;
	u32 process, user, group;
	u32 marks;
};

enum mark { CARRIES = 1, URGENT = 2 };

struct caches {
	u64 at, end;
	u64 apart;
};

/* A cache of objects: whether one of its pages has room, so that it is known where it begins. */
static long look_at_cache(u64 number, struct caches *caches)
{
	struct kmem_cache *cache = (void *)caches->at;
	struct kmem_cache_node *node = BPF_CORE_READ(cache, node[0]);
	u64 first = (u64)BPF_CORE_READ(node, partial.next);
	u64 none = (u64)node + bpf_core_field_offset(struct kmem_cache_node, partial);
	if (node && first && first != none) {
		struct slab *slab = (void *)(first - bpf_core_field_offset(struct slab, slab_list));
		u64 room = (u64)BPF_CORE_READ(slab, freelist);
		u64 bytes = (u64)BPF_CORE_READ_BITFIELD_PROBED(slab, objects) * BPF_CORE_READ(cache, size);
		/* One page: of several the room may be in any. */
		if (room && bytes && bytes <= PAGE) {
			u64 apart = (room & -(u64)PAGE) - (u64)slab / sizeof(u64[8]) * PAGE;
			if (apart % ALIGNED == 0) {
				caches->apart = apart;
				return 1;
			}
		}
	}
	caches->at = (u64)BPF_CORE_READ(cache, list.next) - bpf_core_field_offset(struct kmem_cache, list);
	return caches->at == caches->end;
}

static __always_inline void tell_where_pages_are(struct seq_file *seq, struct sock *listener)
{
	struct caches caches = { .at = (u64)BPF_CORE_READ(listener, __sk_common.skc_prot, slab) };
	caches.end = caches.at;
	if (!caches.at || bpf_core_type_size(struct page) != sizeof(u64[8]))
		return;
	bpf_loop(MOST_CACHES, look_at_cache, &caches, 0);
	if (caches.apart)
		bpf_seq_write(seq, &caches.apart, sizeof(caches.apart));
}

struct queue {
	u64 at;
	u32 skip, told;
	struct seq_file *seq;
};

static __always_inline void describe(struct sock *sock, struct waiting *waiting)
{
	waiting->family = BPF_CORE_READ(sock, __sk_common.skc_family);
	if (waiting->family == INET) {
		u32 local = BPF_CORE_READ(sock, __sk_common.skc_rcv_saddr);
		u32 remote = BPF_CORE_READ(sock, __sk_common.skc_daddr);
		__builtin_memcpy(waiting->local, &local, sizeof(local));
		__builtin_memcpy(waiting->remote, &remote, sizeof(remote));
	} else if (bpf_core_field_exists(sock->__sk_common.skc_v6_daddr)) {
		BPF_CORE_READ_INTO(&waiting->local, sock, __sk_common.skc_v6_rcv_saddr);
		BPF_CORE_READ_INTO(&waiting->remote, sock, __sk_common.skc_v6_daddr);
	}
	waiting->local_port = BPF_CORE_READ(sock, __sk_common.skc_num);
	waiting->remote_port = __builtin_bswap16(BPF_CORE_READ(sock, __sk_common.skc_dport));
	waiting->state = BPF_CORE_READ(sock, __sk_common.skc_state);
	waiting->first = BPF_CORE_READ((struct tcp_sock *)sock, copied_seq);
	waiting->next = BPF_CORE_READ((struct tcp_sock *)sock, rcv_nxt);
}

static long tell_of_connection(u64 number, struct queue *queue)
{
	struct request_sock *request = (void *)queue->at;
	if (!request || queue->told == AT_ONCE)
		return 1;
	if (number >= queue->skip) {
		struct waiting waiting = {};
		describe(BPF_CORE_READ(request, sk), &waiting);
		if (bpf_seq_write(queue->seq, &waiting, sizeof(waiting)))
			return 1;
		queue->told++;
	}
	queue->at = (u64)BPF_CORE_READ(request, dl_next);
	return 0;
}

static long pass(u64 number, u64 *at)
{
	*at = (u64)BPF_CORE_READ((struct request_sock *)*at, dl_next);
	return !*at;
}

struct walk {
	/* Where we are: in a buffer, at the piece of a number in it; which byte comes first there. */
	u64 buffer, end;
	u64 shared;
	u32 piece, pieces;
	u32 at;
	/* The number of the first byte of all, the next that is to be told, and how many may still be. */
	u32 first, next, left;
	/* Whether bytes have no numbers: one comes behind the other. */
	u32 in_order;
	u64 apart;
	struct seq_file *seq;
};

/* Tells of a piece what is to be told next. Whether more of this connection may be told. */
static __always_inline int tell_piece(struct walk *walk, u64 address, u32 length)
{
	u32 zero = 0, skip = walk->next - walk->at;
	/* Behind what is to be told there is nothing in order. */
	if ((s32)skip < 0)
		return 0;
	if (skip >= length)
		return 1;
	u64 size = length - skip;
	if (size > walk->left)
		size = walk->left;
	if (size > PIECE)
		size = PIECE;
	struct piece *piece = bpf_map_lookup_elem(&pieces, &zero);
	if (!piece || bpf_probe_read_kernel(piece->bytes, size, (void *)(address + skip)))
		return 0;
	if (bpf_seq_write(walk->seq, piece->bytes, size))
		return 0;
	walk->next += size;
	walk->left -= size;
	return walk->left && size == length - skip;
}

static __always_inline void begin_buffer(struct walk *walk, u64 *address, u32 *length)
{
	struct sk_buff *buffer = (void *)walk->buffer;
	char *cb = (char *)buffer + bpf_core_field_offset(struct sk_buff, cb);
	struct skb_shared_info *shared = (void *)((u64)BPF_CORE_READ(buffer, head) + BPF_CORE_READ(buffer, end));
	walk->shared = (u64)shared;
	walk->pieces = BPF_CORE_READ(shared, nr_frags);
	if (!walk->in_order)
		walk->at = BPF_CORE_READ((struct tcp_skb_cb *)cb, seq) - walk->first;
	*length = BPF_CORE_READ(buffer, len) - BPF_CORE_READ(buffer, data_len);
	*address = (u64)BPF_CORE_READ(buffer, data);
}

static long step(u64 number, struct walk *walk)
{
	u64 address = 0;
	u32 length = 0;
	if (walk->buffer == walk->end || !walk->buffer)
		return 1;
	if (!walk->piece) {
		begin_buffer(walk, &address, &length);
		struct skb_shared_info *shared = (void *)walk->shared;
		if (BPF_CORE_READ(shared, frag_list))
			return 1;
	} else {
		struct skb_frag frag = {};
		bpf_probe_read_kernel(&frag, sizeof(frag),
				      (void *)walk->shared + bpf_core_field_offset(struct skb_shared_info, frags) +
					      (walk->piece - 1) * sizeof(frag));
		/* What a device has for itself. */
		if (frag.page & 1)
			return 1;
		length = frag.length;
		address = frag.page / sizeof(u64[8]) * PAGE + walk->apart + frag.offset;
	}
	if (length && !tell_piece(walk, address, length))
		return 1;
	walk->at += length;
	if (++walk->piece > walk->pieces) {
		walk->piece = 0;
		struct sk_buff *buffer = (void *)walk->buffer;
		walk->buffer = (u64)BPF_CORE_READ(buffer, next);
	}
	return 0;
}

static __always_inline void walk_received(struct seq_file *seq, struct request *request, struct sock *sock, u32 in_order)
{
	struct walk walk = { .apart = request->apart, .seq = seq, .next = request->from, .left = TOGETHER };
	walk.in_order = in_order;
	if (!in_order)
		walk.first = BPF_CORE_READ((struct tcp_sock *)sock, copied_seq);
	walk.end = (u64)sock + bpf_core_field_offset(struct sock, sk_receive_queue);
	walk.buffer = (u64)BPF_CORE_READ(sock, sk_receive_queue.next);
	bpf_loop(MOST_PIECES, step, &walk, 0);
}

static __always_inline void tell_what_came(struct seq_file *seq, struct request *request, u64 at)
{
	if (request->number && at)
		bpf_loop(request->number < MOST_WAITING ? request->number : MOST_WAITING, pass, &at, 0);
	if (at)
		walk_received(seq, request, BPF_CORE_READ((struct request_sock *)at, sk), 0);
}

/* A list of buffers: where we are, where it ends, which is the first to tell of. */
struct buffers {
	u64 at, end;
	u32 skip, told;
	u64 urgent;
	struct seq_file *seq;
};

static __always_inline void begin_list(struct buffers *buffers, struct sock *sock)
{
	buffers->end = (u64)sock + bpf_core_field_offset(struct sock, sk_receive_queue);
	buffers->at = (u64)BPF_CORE_READ(sock, sk_receive_queue.next);
}

static __always_inline int is_over(struct buffers *buffers)
{
	return !buffers->at || buffers->at == buffers->end;
}

static __always_inline void go_on(struct buffers *buffers)
{
	struct sk_buff *buffer = (void *)buffers->at;
	buffers->at = (u64)BPF_CORE_READ(buffer, next);
}

static long pass_buffer(u64 number, struct buffers *buffers)
{
	if (is_over(buffers))
		return 1;
	go_on(buffers);
	return 0;
}

/* What waits at a unix listener: a buffer of its own for each connection. */
static long tell_of_unix_connection(u64 number, struct buffers *buffers)
{
	if (is_over(buffers) || buffers->told == AT_ONCE)
		return 1;
	if (number >= buffers->skip) {
		struct sk_buff *buffer = (void *)buffers->at;
		struct sock *sock = BPF_CORE_READ(buffer, sk);
		struct cred *cred = BPF_CORE_READ(sock, sk_peer_cred);
		struct unix_waiting waiting = { .messages = BPF_CORE_READ(sock, sk_receive_queue.qlen) };
		waiting.user = BPF_CORE_READ(cred, euid.val);
		waiting.group = BPF_CORE_READ(cred, egid.val);
		if (bpf_seq_write(buffers->seq, &waiting, sizeof(waiting)))
			return 1;
		buffers->told++;
	}
	go_on(buffers);
	return 0;
}

static long tell_of_message(u64 number, struct buffers *buffers)
{
	if (is_over(buffers) || buffers->told == AT_ONCE)
		return 1;
	if (number >= buffers->skip) {
		struct sk_buff *buffer = (void *)buffers->at;
		struct unix_skb_parms *parms = (void *)buffer + bpf_core_field_offset(struct sk_buff, cb);
		struct message message = { .length = BPF_CORE_READ(buffer, len) };
		struct pid *pid = BPF_CORE_READ(parms, pid);
		message.process = pid ? BPF_CORE_READ(pid, numbers[0].nr) : 0;
		message.user = BPF_CORE_READ(parms, uid.val);
		message.group = BPF_CORE_READ(parms, gid.val);
		message.marks = (BPF_CORE_READ(parms, fp) ? CARRIES : 0) | (buffers->at == buffers->urgent ? URGENT : 0);
		if (bpf_seq_write(buffers->seq, &message, sizeof(message)))
			return 1;
		buffers->told++;
	}
	go_on(buffers);
	return 0;
}

static __always_inline void tell_of_unix(struct seq_file *seq, struct request *request, struct sock *listener)
{
	struct buffers buffers = { .seq = seq };
	begin_list(&buffers, listener);
	if (request->wish == WHO_WAITS) {
		buffers.skip = request->number;
		bpf_loop(MOST_WAITING, tell_of_unix_connection, &buffers, 0);
		return;
	}
	if (request->number)
		bpf_loop(request->number < MOST_WAITING ? request->number : MOST_WAITING, pass_buffer, &buffers, 0);
	if (is_over(&buffers))
		return;
	struct sk_buff *first = (void *)buffers.at;
	struct sock *sock = BPF_CORE_READ(first, sk);
	if (request->wish == WHAT_CAME) {
		walk_received(seq, request, sock, 1);
		return;
	}
	begin_list(&buffers, sock);
	buffers.skip = request->from;
	if (bpf_core_field_exists(((struct unix_sock *)0)->oob_skb))
		buffers.urgent = (u64)BPF_CORE_READ((struct unix_sock *)sock, oob_skb);
	bpf_loop(MOST_PIECES, tell_of_message, &buffers, 0);
}

SEC("iter/task_file")
int accept_queue(struct bpf_iter__task_file *context)
{
	u32 zero = 0;
	struct seq_file *seq = context->meta->seq;
	struct file *file = context->file;
	struct request *request = bpf_map_lookup_elem(&requests, &zero);
	if (!context->task || !file || !request || context->fd != request->fd)
		return 0;
	struct socket *socket = bpf_sock_from_file(file);
	if (!socket)
		return 0;
	struct sock *sock = BPF_CORE_READ(socket, sk);
	if (!sock || BPF_CORE_READ(sock, __sk_common.skc_state) != LISTENS)
		return 0;
	if (BPF_CORE_READ(sock, __sk_common.skc_family) == UNIX) {
		tell_of_unix(seq, request, sock);
		return 0;
	}
	if (BPF_CORE_READ(sock, sk_protocol) != TCP)
		return 0;
	struct queue queue = { .seq = seq, .skip = request->number };
	queue.at = (u64)BPF_CORE_READ((struct inet_connection_sock *)sock, icsk_accept_queue.rskq_accept_head);
	if (request->wish == WHERE_PAGES_ARE)
		tell_where_pages_are(seq, sock);
	else if (request->wish == WHO_WAITS)
		bpf_loop(MOST_WAITING, tell_of_connection, &queue, 0);
	else
		tell_what_came(seq, request, queue.at);
	return 0;
}

/* Most helpers are for programs under the kernel's own licence. */
char LICENSE[] SEC("license") = "GPL";
