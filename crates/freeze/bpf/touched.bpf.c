// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Which entries of open directories were touched since an instant: their inodes in memory say when they last changed,
 * and going through the names that the kernel has of a directory takes a tenth of asking for each by a system call of
 * its own. It is run for every open file of the process that reads the iterator, and tells of the directories among
 * them that this asks for. See src/touched.rs.
 *
 * A name that the kernel has forgotten is not told of, and one that it forgets in this moment may lead elsewhere: what
 * is read is of no fault ever, and the reader counts.
 */

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

typedef __u32 u32;
typedef __s64 s64;
typedef __u64 u64;

#define OURS __attribute__((preserve_access_index))

/*
 * The kernel's types, as far as they are needed; the loader finds the fields' places in the running kernel. Times of
 * inodes are so since Linux 6.11, children since 6.8.
 */
struct hlist_node { struct hlist_node *next; } OURS;
struct hlist_head { struct hlist_node *first; } OURS;
struct hlist_bl_node { struct hlist_bl_node **pprev; } OURS;
struct inode { unsigned long i_ino; s64 i_ctime_sec; u32 i_ctime_nsec; } OURS;
struct dentry {
	struct hlist_bl_node d_hash;
	struct inode *d_inode;
	struct hlist_node d_sib;
	struct hlist_head d_children;
} OURS;
struct path { struct dentry *dentry; } OURS;
struct file { struct path f_path; } OURS;
struct task_struct { int tgid; } OURS;
struct seq_file;
struct bpf_iter_meta { struct seq_file *seq; } OURS;
struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	u32 fd;
	struct file *file;
} OURS;

extern void *bpf_rdonly_cast(const void *object, u32 type) __ksym;

#define AS(type, address) ((type *)bpf_rdonly_cast((void *)(address), bpf_core_type_id_kernel(type)))

/* In the nanoseconds of a time that somebody has asked for (I_CTIME_QUERIED, since Linux 6.13). */
#define QUERIED (1u << 31)

/* More names than this of one directory are not gone through. */
#define MOST (1 << 20)

/* Descriptors from this on are not asked for. */
#define DESCRIPTORS (1 << 16)

struct request {
	s64 seconds;
	u32 nanoseconds;
	u32 pad;
	/* The descriptors of the directories, a bit each. */
	u64 wanted[DESCRIPTORS / 64];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct request);
} requests SEC(".maps");

/* Of an entry that was touched its inode's number; last of all, with no inode, how many were not. */
struct told {
	u32 fd;
	u32 untouched;
	u64 inode;
};

struct walk {
	u64 at;
	struct request *request;
	struct seq_file *seq;
	struct told told;
	/* Nothing that is told is to be believed. */
	u32 failed;
};

static long step(u64 number, struct walk *walk)
{
	if (!walk->at)
		return 1;
	struct dentry *entry = AS(struct dentry, walk->at - bpf_core_field_offset(struct dentry, d_sib));
	walk->at = (u64)entry->d_sib.next;
	struct inode *inode = entry->d_inode;
	/* A name that nothing has, or had. */
	if (!inode || !entry->d_hash.pprev)
		return 0;
	s64 seconds = inode->i_ctime_sec;
	u32 nanoseconds = inode->i_ctime_nsec & ~QUERIED;
	struct request *since = walk->request;
	if (seconds < since->seconds || (seconds == since->seconds && nanoseconds < since->nanoseconds)) {
		walk->told.untouched++;
		return 0;
	}
	struct told touched = { .fd = walk->told.fd, .inode = inode->i_ino };
	if (bpf_seq_write(walk->seq, &touched, sizeof(touched))) {
		walk->failed = 1;
		return 1;
	}
	return 0;
}

SEC("iter/task_file")
int touched(struct bpf_iter__task_file *context)
{
	u32 zero = 0, fd = context->fd;
	struct task_struct *task = context->task;
	struct file *file = context->file;
	struct request *request = bpf_map_lookup_elem(&requests, &zero);
	if (!task || !file || !request || fd >= DESCRIPTORS)
		return 0;
	if (!(request->wanted[fd / 64] >> (fd % 64) & 1))
		return 0;
	struct walk walk = { .request = request, .seq = context->meta->seq, .told = { .fd = fd } };
	walk.at = (u64)AS(struct dentry, file->f_path.dentry)->d_children.first;
	bpf_loop(MOST, step, &walk, 0);
	if (!walk.failed && !walk.at)
		bpf_seq_write(walk.seq, &walk.told, sizeof(walk.told));
	return 0;
}

/* Most helpers are for programs under the kernel's own licence. */
char LICENSE[] SEC("license") = "GPL";
