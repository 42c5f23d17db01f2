// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * What a stopped process would have to be asked otherwise, a system call of its own for each answer: an iterator over its threads tells it of them while
 * they stand still. See src/onlooker.rs, which reads the records.
 *
 * Where this kernel has something else than what is known of it here, nothing is told, and the process is asked.
 */

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

typedef __u8 u8;
typedef __u32 u32;
typedef __s32 s32;
typedef __u64 u64;
typedef __s64 s64;

#define OURS __attribute__((preserve_access_index))

/* The kernel's types, as far as they are needed; the loader finds the fields' places in the running kernel. */
struct upid { int nr; } OURS;
struct pid { unsigned int level; struct upid numbers[1]; } OURS;
struct cred { unsigned int securebits; } OURS;
struct sigset { unsigned long sig[1]; } OURS;
struct k_sigaction { char bytes[0]; } OURS;
struct sighand_struct { struct k_sigaction action[64]; } OURS;
struct hrtimer { u8 state; } OURS;
struct cpu_itimer { u64 expires, incr; } OURS;
struct signal_struct {
	unsigned int is_child_subreaper : 1;
	struct hrtimer real_timer;
	s64 it_real_incr;
	struct cpu_itimer it[2];
} OURS;
/* Since Linux 6.18 a structure. */
typedef struct { unsigned long __mm_flags[1]; } mm_flags_t;
struct mm_struct { unsigned long brk; mm_flags_t flags; } OURS;
struct mm_struct___before { unsigned long flags; } OURS;
struct task_struct {
	int pid, tgid;
	struct mm_struct *mm;
	struct pid *thread_pid;
	const struct cred *cred;
	struct signal_struct *signal;
	struct sighand_struct *sighand;
	int *clear_child_tid;
	int pdeath_signal;
	u64 timer_slack_ns;
	unsigned long sas_ss_sp, sas_ss_size;
	unsigned int sas_ss_flags;
} OURS;
struct seq_file;
struct bpf_iter_meta { struct seq_file *seq; } OURS;
struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
} OURS;

/* A `struct sigaction` of this architecture: handler, flags, restorer, mask, a word each. */
#define ACTION 32
#define SIGNALS 64

#define DUMPABLE 3

struct thread {
	/* In its own pid namespace. */
	s32 tid;
	s32 parent_death;
	u32 secure_bits;
	u32 stack_flags;
	u64 clear;
	u64 stack, stack_size;
	u64 slack;
	/* Whether the process's record follows, which stands behind its first thread. */
	u64 leads;
};

struct process {
	u64 heap_end;
	u32 subreaper;
	u32 dumpable;
	/* Whether an interval timer runs, or has run and is yet to be wound up again. */
	u64 intervals;
	u8 actions[SIGNALS * ACTION];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct process);
} scratch SEC(".maps");

static __always_inline u64 intervals(struct signal_struct *signal)
{
	if (!bpf_core_field_exists(signal->real_timer.state))
		return 1;
	return BPF_CORE_READ(signal, real_timer.state) || BPF_CORE_READ(signal, it_real_incr) ||
	       BPF_CORE_READ(signal, it[0].expires) || BPF_CORE_READ(signal, it[0].incr) ||
	       BPF_CORE_READ(signal, it[1].expires) || BPF_CORE_READ(signal, it[1].incr);
}

static __always_inline u64 flags_of(struct mm_struct *mm)
{
	if (bpf_core_field_exists(mm->flags.__mm_flags))
		return BPF_CORE_READ(mm, flags.__mm_flags[0]);
	return BPF_CORE_READ((struct mm_struct___before *)mm, flags);
}

SEC("iter/task")
int onlooker(struct bpf_iter__task *context)
{
	struct seq_file *seq = context->meta->seq;
	struct task_struct *task = context->task;
	u32 zero = 0;
	if (!task)
		return 0;
	struct mm_struct *mm = BPF_CORE_READ(task, mm);
	struct signal_struct *signal = BPF_CORE_READ(task, signal);
	struct sighand_struct *hands = BPF_CORE_READ(task, sighand);
	struct pid *number = BPF_CORE_READ(task, thread_pid);
	/* It has ended. */
	if (!mm || !signal || !hands || !number)
		return 0;
	u32 level = BPF_CORE_READ(number, level);
	void *inner = (void *)number + bpf_core_field_offset(struct pid, numbers) + level * bpf_core_type_size(struct upid) +
		      bpf_core_field_offset(struct upid, nr);
	struct thread thread = {
		.parent_death = BPF_CORE_READ(task, pdeath_signal),
		.secure_bits = BPF_CORE_READ(task, cred, securebits),
		.stack_flags = BPF_CORE_READ(task, sas_ss_flags),
		.clear = (u64)BPF_CORE_READ(task, clear_child_tid),
		.stack = BPF_CORE_READ(task, sas_ss_sp),
		.stack_size = BPF_CORE_READ(task, sas_ss_size),
		.slack = BPF_CORE_READ(task, timer_slack_ns),
		.leads = BPF_CORE_READ(task, pid) == BPF_CORE_READ(task, tgid),
	};
	if (bpf_probe_read_kernel(&thread.tid, sizeof(thread.tid), inner))
		return 0;
	if (bpf_seq_write(seq, &thread, sizeof(thread)) || !thread.leads)
		return 0;
	struct process *process = bpf_map_lookup_elem(&scratch, &zero);
	if (!process)
		return 0;
	process->heap_end = BPF_CORE_READ(mm, brk);
	process->subreaper = BPF_CORE_READ_BITFIELD_PROBED(signal, is_child_subreaper);
	process->dumpable = flags_of(mm) & DUMPABLE;
	process->intervals = intervals(signal);
	if (bpf_core_type_size(struct k_sigaction) != ACTION ||
	    bpf_probe_read_kernel(process->actions, sizeof(process->actions), &hands->action))
		return 0;
	bpf_seq_write(seq, process, sizeof(*process));
	return 0;
}

/* Most helpers are for programs under the kernel's own licence. */
char LICENSE[] SEC("license") = "GPL";
