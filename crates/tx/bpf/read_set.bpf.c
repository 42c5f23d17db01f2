// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * What a transaction looked up. Its view has dentries of its own, one for each name that it ever looked up, the missing
 * ones included; walking them costs nothing while it runs. This program walks those of one overlay from its root down,
 * when nobody is in it any more. See src/read_set.
 *
 * Beside each name stands what the live tree's own dentry says: where it is, and when its inode was last changed. For
 * nearly all names that is the whole validation, and saves its reader a system call or three for each.
 *
 * Everything is read as what may be gone: a dentry that the kernel frees meanwhile gives nonsense, never a fault, and
 * the walk's reader finds out by the canary.
 *
 * The same program tells who has a named fifo open: it sees every open file that it is run over. And it tells at which
 * dentries the directories are that its reader has open: a path would be told from whatever mount they were opened by.
 * A second one tells which processes have memory at all: on many machines most of what /proc lists are the kernel's own
 * threads, and asking there of each takes longer than a short command.
 */

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s64 s64;

#define OURS __attribute__((preserve_access_index))

/* The kernel's types, as far as they are needed; the loader finds the fields' places in the running kernel. */
struct hlist_node { struct hlist_node *next; } OURS;
struct hlist_head { struct hlist_node *first; } OURS;
struct hlist_bl_node { struct hlist_bl_node **pprev; } OURS;
struct qstr { u32 len; const unsigned char *name; } OURS;
struct dentry;
struct super_block { unsigned long s_magic; struct dentry *s_root; } OURS;
struct inode {
	u16 i_mode;
	struct super_block *i_sb;
	unsigned long i_ino;
	u32 i_generation;
	s64 i_ctime_sec;
	u32 i_ctime_nsec;
} OURS;
/* Until Linux 6.11, since 6.6. */
struct timespec64 { s64 tv_sec; long tv_nsec; } OURS;
struct inode___before { struct timespec64 __i_ctime; } OURS;
/*
 * What counts what becomes of a dentry, two for each: it gets an inode, loses it, is moved, is taken out of the hash.
 */
struct seqcount { unsigned int sequence; } OURS;
struct seqcount_spinlock { struct seqcount seqcount; } OURS;
struct dentry {
	struct seqcount_spinlock d_seq;
	struct hlist_bl_node d_hash;
	struct dentry *d_parent;
	struct qstr d_name;
	struct inode *d_inode;
	struct super_block *d_sb;
	void *d_fsdata;
	struct hlist_node d_sib;
	struct hlist_head d_children;
} OURS;
struct path { struct dentry *dentry; } OURS;
struct file { struct path f_path; struct inode *f_inode; } OURS;
/* What counts how often its maps were about to be changed: a sequence since Linux 6.14, a number since 6.4. */
struct mm_struct { struct seqcount mm_lock_seq; } OURS;
struct mm_struct___before { int mm_lock_seq; } OURS;
struct task_struct {
	int pid, tgid;
	u32 self_exec_id;
	u64 start_boottime;
	struct mm_struct *mm;
	struct task_struct *group_leader;
} OURS;
struct ovl_path { struct dentry *dentry; } OURS;
struct ovl_entry { unsigned int __numlower; struct ovl_path __lowerstack[0]; } OURS;
struct ovl_inode { struct inode vfs_inode; struct dentry *__upperdentry; struct ovl_entry *oe; } OURS;
struct seq_file;
struct bpf_iter_meta { struct seq_file *seq; } OURS;
struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
} OURS;
struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	u32 fd;
	struct file *file;
} OURS;

/* No file system has longer names. */
#define NAME_MAX 255
#define S_IFMT 0170000
#define S_IFDIR 0040000
#define S_IFIFO 0010000

/* Where pipes without a name are. */
#define PIPEFS_MAGIC 0x50495045

/* Since Linux 6.13 the upper bit of the nanoseconds says that somebody has asked for the time. */
#define NANOSECONDS 0x7fffffff

/* At most so many names; a view with more is not validated, and said so. */
#define MOST (1 << 23)

/*
 * As it is found: whoever reads it judges. Each comparison here would be another way for the kernel to follow when it
 * verifies the program.
 */
struct record {
	u64 self, parent, inode;
	/* The live tree's dentry, where that is, what hashes it, and its inode. */
	u64 lower, lower_parent, lower_hash, lower_ino;
	s64 seconds, nanoseconds;
	u64 magic;
	u16 mode, length;
	u8 again, replaces, pad[2];
	unsigned char name[NAME_MAX + 1];
};

#define HEAD 88

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} records SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct record);
} scratch SEC(".maps");

/*
 * Set by the loader before the walk: what it asks for, and its descriptor of a file in the view. Fifos are asked for
 * over all processes.
 */
enum { NAMES, FIFOS, DIRECTORIES };
struct request { u32 fd; u32 what; };

/*
 * Read by it afterwards; and where the walk is. What stands in a map is unknown to the kernel when it verifies the
 * program, which then follows a step once: of what stands on the stack it knows each value, and follows one for each.
 */
struct outcome {
	u64 done, lost;
	u64 root, at;
	u8 leaving, again, pad[6];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct request);
} requests SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct outcome);
} outcomes SEC(".maps");

/* What a step is handed is on the stack. */
struct walk { struct outcome *outcome; };

/*
 * A pointer that is nobody's to hold, to be read by plain loads, which take a tenth of the time of
 * bpf_probe_read_kernel(); where it leads nowhere they give zero (Linux 6.2). The overlay's own types may be a
 * module's, for which there is none of this.
 */
#define AT(pointer, type) ((struct type *)bpf_rdonly_cast((void *)(pointer), bpf_core_type_id_kernel(struct type)))

/* The live tree's dentry of an object of the view, if it is one of the live tree's. */
static __always_inline u64 lower_of(u64 inode)
{
	struct ovl_inode *ovl = (void *)inode - bpf_core_field_offset(struct ovl_inode, vfs_inode);
	struct ovl_entry *entry = BPF_CORE_READ(ovl, oe);
	if (!BPF_CORE_READ(entry, __numlower))
		return 0;
	return (u64)BPF_CORE_READ(entry, __lowerstack[0].dentry);
}

/*
 * What an overlay notes of a name in place of a pointer (Linux 6.5): that it hides one of the live tree. Of a new
 * directory it says so in any case.
 */
#define HIDES 2

/*
 * Whether the changed object of a name may have taken the place of another: it was renamed to it, or made elsewhere and
 * put over what hid one that had been removed. One that was made where nothing was has had no other inode, and no other
 * name, than its first: its dentry got the one, and that was all, in the view and below it. The one below is that of
 * its first name; of others the view alone tells.
 */
static __always_inline u8 may_replace(struct dentry *at, u64 inode, u16 mode)
{
	struct ovl_inode *ovl = (void *)inode - bpf_core_field_offset(struct ovl_inode, vfs_inode);
	u64 upper = inode ? (u64)BPF_CORE_READ(ovl, __upperdentry) : 0;
	if (!upper)
		return 0;
	if (at->d_seq.seqcount.sequence > 2 || AT(upper, dentry)->d_seq.seqcount.sequence > 2)
		return 1;
	return (mode & S_IFMT) != S_IFDIR && (u64)at->d_fsdata & HIDES;
}

/* When an inode was last changed; zeros where the kernel keeps it in a way that is not known here. */
static __always_inline void changed(struct record *record, struct inode *inode)
{
	if (bpf_core_field_exists(struct inode, i_ctime_sec)) {
		record->seconds = inode->i_ctime_sec;
		record->nanoseconds = inode->i_ctime_nsec & NANOSECONDS;
	} else if (bpf_core_field_exists(struct inode___before, __i_ctime)) {
		record->seconds = BPF_CORE_READ((struct inode___before *)inode, __i_ctime.tv_sec);
		record->nanoseconds = BPF_CORE_READ((struct inode___before *)inode, __i_ctime.tv_nsec);
	} else {
		record->seconds = record->nanoseconds = 0;
	}
}

static __always_inline u64 sibling(u64 node)
{
	return node - bpf_core_field_offset(struct dentry, d_sib);
}

static __always_inline void tell(struct dentry *at, struct outcome *walk)
{
	u32 zero = 0;
	struct record *record = bpf_map_lookup_elem(&scratch, &zero);
	/* Unhashed: the name was taken away. What took it is in the change set. */
	if (!record || (walk->at != walk->root && !at->d_hash.pprev))
		return;
	record->inode = (u64)at->d_inode;
	if (walk->again && record->inode)
		return;
	record->self = walk->at;
	record->parent = (u64)at->d_parent;
	record->again = walk->again;
	/* Of what leads nowhere all that is read is zero. */
	record->mode = AT(record->inode, inode)->i_mode;
	record->lower = lower_of(record->inode);
	record->replaces = may_replace(at, record->inode, record->mode);
	struct dentry *lower = AT(record->lower, dentry);
	record->lower_parent = (u64)lower->d_parent;
	record->lower_hash = (u64)lower->d_hash.pprev;
	struct inode *live = AT(lower->d_inode, inode);
	record->lower_ino = live->i_ino;
	record->magic = AT(live->i_sb, super_block)->s_magic;
	changed(record, live);
	u32 length = at->d_name.len & NAME_MAX;
	record->length = length;
	if (bpf_probe_read_kernel(record->name, length, at->d_name.name))
		record->length = 0;
	u32 size = HEAD + length;
	if (size > sizeof(*record))
		size = sizeof(*record);
	if (bpf_ringbuf_output(&records, record, size, BPF_RB_NO_WAKEUP))
		walk->lost++;
}

/*
 * One step of the walk, down first, then to the side, then up. Back at the root it tells the missing names there once
 * more: one that is still among them was there as long as the walk went on, wherever in the order it stands.
 */
static long step(u64 number, struct walk *handed)
{
	struct outcome *walk = handed->outcome;
	struct dentry *at = AT(walk->at, dentry);
	u8 is_root = walk->at == walk->root;
	if (!walk->leaving) {
		tell(at, walk);
		u64 first = (u64)at->d_children.first;
		if (first && (is_root || !walk->again)) {
			walk->at = sibling(first);
			return 0;
		}
	}
	if (is_root) {
		if (walk->again) {
			walk->done = 1;
			return 1;
		}
		walk->again = 1;
		walk->leaving = 0;
		return 0;
	}
	u64 next = (u64)at->d_sib.next;
	if (next) {
		walk->at = sibling(next);
		walk->leaving = 0;
	} else {
		walk->at = (u64)at->d_parent;
		walk->leaving = 1;
	}
	return 0;
}

/* Who has a named fifo open, told by its pid outside of all namespaces. */
static __always_inline void fifo(struct task_struct *task, struct file *file, struct outcome *outcome)
{
	u32 zero = 0;
	struct inode *inode = BPF_CORE_READ(file, f_inode);
	struct record *record;
	if ((BPF_CORE_READ(inode, i_mode) & S_IFMT) != S_IFIFO || BPF_CORE_READ(inode, i_sb, s_magic) == PIPEFS_MAGIC)
		return;
	record = bpf_map_lookup_elem(&scratch, &zero);
	if (!record)
		return;
	record->self = task->tgid;
	record->parent = 0;
	record->length = 0;
	if (bpf_ringbuf_output(&records, record, HEAD, BPF_RB_NO_WAKEUP))
		outcome->lost++;
}

/* Where a directory is that the reader has open: its dentry, and the reader's descriptor. */
static __always_inline void directory(u32 fd, struct file *file, struct outcome *outcome)
{
	u32 zero = 0;
	struct record *record;
	if ((BPF_CORE_READ(file, f_inode, i_mode) & S_IFMT) != S_IFDIR)
		return;
	record = bpf_map_lookup_elem(&scratch, &zero);
	if (!record)
		return;
	record->self = (u64)BPF_CORE_READ(file, f_path.dentry);
	record->parent = fd;
	record->length = 0;
	if (bpf_ringbuf_output(&records, record, HEAD, BPF_RB_NO_WAKEUP))
		outcome->lost++;
}

SEC("iter/task_file")
int read_set(struct bpf_iter__task_file *context)
{
	u32 zero = 0;
	struct task_struct *task = context->task;
	struct file *file = context->file;
	struct request *request = bpf_map_lookup_elem(&requests, &zero);
	struct outcome *outcome = bpf_map_lookup_elem(&outcomes, &zero);
	if (!task || !file || !request || !outcome || outcome->done)
		return 0;
	if (request->what == FIFOS) {
		fifo(task, file, outcome);
		return 0;
	}
	/*
	 * Who reads the iterator runs it. Its number is not asked for by the loader, which knows only the one in its
	 * own pid namespace.
	 */
	if (task->tgid != (int)(bpf_get_current_pid_tgid() >> 32))
		return 0;
	if (request->what == DIRECTORIES) {
		directory(context->fd, file, outcome);
		return 0;
	}
	if (context->fd != request->fd)
		return 0;
	u64 root = (u64)BPF_CORE_READ(file, f_path.dentry, d_sb, s_root);
	outcome->root = outcome->at = root;
	outcome->leaving = outcome->again = 0;
	struct walk walk = { .outcome = outcome };
	bpf_loop(MOST, step, &walk, 0);
	return 0;
}

/* A process that has memory, by its pid outside of all namespaces. */
struct tenant {
	int pid;
	u32 execution;
	u64 started;
	u64 maps;
};

static __always_inline u64 maps_of(struct mm_struct *mm)
{
	u32 count;
	if (bpf_core_field_exists(struct mm_struct, mm_lock_seq.sequence))
		count = BPF_CORE_READ(mm, mm_lock_seq.sequence);
	else if (bpf_core_field_exists(struct mm_struct___before, mm_lock_seq))
		count = BPF_CORE_READ((struct mm_struct___before *)mm, mm_lock_seq);
	else
		return 0;
	return 1ull << 32 | count;
}

/* Those that there are; one is told by each of its threads where the first has ended before others. */
SEC("iter/task")
int in_memory(struct bpf_iter__task *context)
{
	struct task_struct *task = context->task;
	struct mm_struct *mm = task ? BPF_CORE_READ(task, mm) : 0;
	if (!mm)
		return 0;
	struct tenant tenant = { .pid = BPF_CORE_READ(task, tgid) };
	struct task_struct *first = BPF_CORE_READ(task, group_leader);
	if (BPF_CORE_READ(task, pid) != tenant.pid && BPF_CORE_READ(first, mm))
		return 0;
	tenant.execution = BPF_CORE_READ(first, self_exec_id);
	tenant.started = BPF_CORE_READ(first, start_boottime);
	tenant.maps = maps_of(mm);
	bpf_seq_write(context->meta->seq, &tenant, sizeof(tenant));
	return 0;
}

/* Most helpers are for programs under the kernel's own licence. */
char LICENSE[] SEC("license") = "GPL";
