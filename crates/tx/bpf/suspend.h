// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * How a task is suspended in a hook, on its way back to user space.
 *
 * A hook cannot wait where it stands: the caller holds locks that the commit needs. So it schedules work for the way
 * back to user space and fails the call with ERESTARTNOINTR. That unwinds every lock, the work waits, and then the
 * kernel makes the same call again; the program that made it notices nothing.
 *
 * The work waits by reading an attribute of a file that Pando serves by FUSE, and answers late. If Pando dies, the
 * kernel ends that file system, and everybody goes on. Besides, nobody is suspended after the time in `closed`.
 */

#ifndef PANDO_SUSPEND_H
#define PANDO_SUSPEND_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

typedef __u8 u8;
typedef __u32 u32;
typedef __s32 s32;
typedef __u64 u64;

#define OURS __attribute__((preserve_access_index))

/* The kernel's types, as far as they are needed; the loader finds the fields' places in the running kernel. */
struct super_block { u32 s_dev; } OURS;
struct hlist_node { struct hlist_node *next; } OURS;
struct hlist_head { struct hlist_node *first; } OURS;
struct inode { unsigned short i_mode; unsigned long i_ino; struct super_block *i_sb; struct hlist_head i_dentry; } OURS;
struct qstr { const unsigned char *name; } OURS;
union alias { struct hlist_node d_alias; } OURS;
struct dentry { struct inode *d_inode; struct qstr d_name; union alias d_u; } OURS;
struct path { struct dentry *dentry; } OURS;
struct file { u32 f_mode; struct inode *f_inode; } OURS;
struct mm_struct { struct file *exe_file; } OURS;
struct callback_head;
struct bpf_map { u32 id; } OURS;
struct task_struct {
	unsigned int flags;
	int static_prio;
	int pid, tgid;
	struct mm_struct *mm;
	unsigned int in_execve : 1;
	struct callback_head *task_works;
} OURS;
struct mnt_idmap;
struct iattr;
/* Where the number of the system call stands that a task is in. */
struct pt_regs { unsigned long orig_ax; } OURS;
struct pt_regs___arm64 { s32 syscallno; } OURS;

/* What a map's value holds of work that is scheduled: of Linux 6.18, which is newer than the headers. */
struct bpf_task_work { u64 opaque; };

extern int bpf_task_work_schedule_signal_impl(struct task_struct *task, struct bpf_task_work *work, void *map__map,
					      int (*callback)(struct bpf_map *, void *, void *),
					      void *aux__prog) __ksym;
extern struct task_struct *bpf_task_from_pid(s32 pid) __ksym;
extern struct task_struct *bpf_task_from_vpid(s32 pid) __ksym;
extern void bpf_task_release(struct task_struct *task) __ksym;
extern struct file *bpf_get_task_exe_file(struct task_struct *task) __ksym;
extern void bpf_put_file(struct file *file) __ksym;
extern int bpf_get_file_xattr(struct file *file, const char *name__str, struct bpf_dynptr *value) __ksym;

#define EINTR 4
#define EBUSY 16
#define ENODATA 61
#define ERESTARTNOINTR 513

/* linux/sched.h */
#define PF_EXITING 0x00000004
#define PF_IO_WORKER 0x00000010
#define PF_DUMPCORE 0x00000200
#define PF_SIGNALED 0x00000400
#define PF_USER_WORKER 0x00004000
#define PF_KTHREAD 0x00200000

/* linux/fs.h: a file that a listener of fanotify events was given, by which nobody is told of anything. */
#define FMODE_NONOTIFY (1u << 25)
#define FMODE_NONOTIFY_PERM (1u << 26)

/* The same number on all architectures. */
#define IO_URING_ENTER 426

/* How often it is looked whether the work is there: it comes by an interrupt of this very processor. */
#define LOOKS (1 << 16)

/* Until when (CLOCK_MONOTONIC, nanoseconds) the gate is closed; 0 while it is open. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} closed SEC(".maps");

/* Read by the loader. */
struct outcome {
	/* How often somebody was suspended, and how often somebody went through who could not be. */
	u64 suspended, passed;
	/* Whether the file that they wait at does not make them wait. */
	u64 broken;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct outcome);
} outcomes SEC(".maps");

/* By thread. */
struct waiter {
	struct bpf_task_work work;
	/* Whether work was scheduled that has not begun. */
	u64 is_due;
	/* Read by the loader: since when it waits (CLOCK_BOOTTIME, nanoseconds), for what, and whose thread it is. */
	u64 since, inode;
	u32 device, process;
	char name[64];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u32);
	__type(value, struct waiter);
} waiters SEC(".maps");

/* The process that commits or holds, and the one whose executable is waited at: as the first pid namespace has them. */
s32 committer = 0;
s32 holder = 0;

static char attribute[8];

/* Runs on the way to user space, where no lock is held, and may sleep. */
static int wait_for_release(struct bpf_map *map, void *key, void *value)
{
	struct waiter *waiter = value;
	struct bpf_dynptr buffer;
	struct outcome *outcome;
	struct task_struct *task;
	struct file *file;
	int answer = 0;
	u32 zero = 0;

	waiter->is_due = 0;
	waiter->since = bpf_ktime_get_boot_ns();
	outcome = bpf_map_lookup_elem(&outcomes, &zero);
	task = outcome ? bpf_task_from_pid(holder) : NULL;
	if (!outcome || !task) {
		if (outcome)
			outcome->broken = 1;
		waiter->since = 0;
		return 0;
	}
	file = bpf_get_task_exe_file(task);
	if (file) {
		bpf_dynptr_from_mem(attribute, sizeof(attribute), 0, &buffer);
		answer = bpf_get_file_xattr(file, "user.pando", &buffer);
		bpf_put_file(file);
	}
	bpf_task_release(task);
	waiter->since = 0;
	/* Let go, or called away by a signal. Anything else would have them come back here over and over. */
	if (answer != -ENODATA && answer != -EINTR)
		outcome->broken = 1;
	return 0;
}

struct look { struct callback_head *before; int is_there; };

static long look(u32 number, struct look *look)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct callback_head *now = NULL;

	bpf_core_read(&now, sizeof(now), &task->task_works);
	look->is_there = now != look->before;
	return look->is_there;
}

/* Calls that were put in a ring are not made again by the kernel: the program would see the error. */
static __always_inline int is_in_ring(struct task_struct *task)
{
	struct pt_regs *registers;
	u64 number = 0;

	if (task->flags & (PF_IO_WORKER | PF_USER_WORKER))
		return 1;
	registers = (struct pt_regs *)bpf_task_pt_regs(task);
	if (bpf_core_field_exists(((struct pt_regs___arm64 *)0)->syscallno))
		number = BPF_CORE_READ((struct pt_regs___arm64 *)registers, syscallno);
	else if (bpf_core_field_exists(((struct pt_regs *)0)->orig_ax))
		number = BPF_CORE_READ(registers, orig_ax);
	return number == IO_URING_ENTER;
}

static __always_inline int pass(struct outcome *outcome)
{
	__sync_fetch_and_add(&outcome->passed, 1);
	return 0;
}

static __always_inline struct waiter *waiter_of(u32 thread)
{
	struct waiter none = {}, *waiter = bpf_map_lookup_elem(&waiters, &thread);

	if (waiter)
		return waiter;
	bpf_map_update_elem(&waiters, &thread, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&waiters, &thread);
}

/* Notes what somebody waits for, as far as an inode tells: one of its names. */
static __always_inline void note(struct waiter *waiter, struct task_struct *task, struct inode *inode)
{
	struct hlist_node *first = NULL;
	const unsigned char *name;
	struct dentry *dentry;

	waiter->process = task->tgid;
	waiter->inode = BPF_CORE_READ(inode, i_ino);
	waiter->device = BPF_CORE_READ(inode, i_sb, s_dev);
	waiter->name[0] = 0;
	if (!bpf_core_field_exists(dentry->d_u.d_alias) || !bpf_core_field_exists(inode->i_dentry))
		return;
	first = BPF_CORE_READ(inode, i_dentry.first);
	if (!first)
		return;
	dentry = (void *)first - bpf_core_field_offset(struct dentry, d_u.d_alias);
	name = BPF_CORE_READ(dentry, d_name.name);
	bpf_probe_read_kernel_str(waiter->name, sizeof(waiter->name), name);
}

static __noinline int suspend(struct inode *inode)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct outcome *outcome;
	struct look seen = {};
	struct waiter *waiter;
	u32 zero = 0;
	u64 *until;
	int failed;

	until = bpf_map_lookup_elem(&closed, &zero);
	outcome = bpf_map_lookup_elem(&outcomes, &zero);
	if (!until || !outcome || !*until || task->tgid == committer)
		return 0;
	/* The kernel's own, and who is past all system calls. */
	if (task->flags & (PF_KTHREAD | PF_EXITING | PF_SIGNALED | PF_DUMPCORE))
		return 0;
	if (outcome->broken || bpf_ktime_get_ns() >= *until || is_in_ring(task))
		return pass(outcome);
	waiter = waiter_of(task->pid);
	if (!waiter)
		return pass(outcome);
	note(waiter, task, inode);
	bpf_core_read(&seen.before, sizeof(seen.before), &task->task_works);
	failed = bpf_task_work_schedule_signal_impl(task, &waiter->work, &waiters, wait_for_release, NULL);
	/* A path is looked up twice where the first time was too hasty. */
	if (failed == -EBUSY && waiter->is_due)
		return -ERESTARTNOINTR;
	if (failed)
		return pass(outcome);
	waiter->is_due = 1;
	/* Before it is there, the call would not be made again, and its program would see the error. */
	bpf_loop(LOOKS, look, &seen, 0);
	if (!seen.is_there)
		return pass(outcome);
	__sync_fetch_and_add(&outcome->suspended, 1);
	return -ERESTARTNOINTR;
}

/* Notes the calling process, and the one whose executable is waited at. */
static __always_inline int introduce_to(s32 number)
{
	struct task_struct *task = bpf_task_from_vpid(number);

	if (!task)
		return 1;
	holder = task->pid;
	bpf_task_release(task);
	committer = bpf_get_current_pid_tgid() >> 32;
	return 0;
}

#endif
