// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * What a stopped process would have to be asked otherwise, a system call of its own for each answer: an iterator over
 * its threads tells it of them while they stand still. See src/bpf/task_records.rs, which reads the records.
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
struct key;
struct cred {
	unsigned int securebits;
	struct key *process_keyring, *thread_keyring;
	void *security;
} OURS;
struct fs_struct;
struct files_struct;
struct nsproxy;
struct ldt_struct;
struct landlock_ruleset { u32 num_layers; } OURS;
struct thread_info { unsigned long syscall_work; } OURS;
enum syscall_work_bit { SYSCALL_WORK_BIT_SYSCALL_USER_DISPATCH = 5 };
struct sigset { unsigned long sig[1]; } OURS;
struct k_sigaction { char bytes[0]; } OURS;
struct restart_block {
	void *fn;
	union {
		struct { u64 time; } futex;
		struct { int clockid; u64 expires; } nanosleep;
		struct { int has_timeout; unsigned long tv_sec, tv_nsec; } poll;
	};
} OURS;
struct pt_regs { unsigned long ax; } OURS;
struct sighand_struct { struct k_sigaction action[64]; } OURS;
struct hrtimer { u8 state; } OURS;
struct cpu_itimer { u64 expires, incr; } OURS;
struct signal_struct {
	unsigned int is_child_subreaper : 1;
	short oom_score_adj;
	struct hrtimer real_timer;
	s64 it_real_incr;
	struct cpu_itimer it[2];
} OURS;
/* Since Linux 6.18 a structure. */
typedef struct { unsigned long __mm_flags[1]; } mm_flags_t;
typedef struct { struct ldt_struct *ldt; } mm_context_t;
typedef struct { int counter; } atomic_t;
/* Contexts of asynchronous input and output. */
struct list_head { struct list_head *next; } OURS;
struct percpu_ref { unsigned long percpu_count_ptr; } OURS;
struct kioctx {
	struct percpu_ref reqs;
	unsigned long user_id;
	unsigned int max_reqs, nr_events;
	struct list_head active_reqs;
	unsigned int tail;
} OURS;
struct kioctx_table { unsigned int nr; struct kioctx *table[0]; } OURS;
/* A map of which each processor has a part. */
struct bpf_array { void *pptrs[0]; } OURS;
struct mm_struct {
	unsigned long brk;
	mm_flags_t flags;
	mm_context_t context;
	atomic_t membarrier_state;
	struct kioctx_table *ioctx_table;
} OURS;
struct mm_struct___before { unsigned long flags; } OURS;
struct task_struct {
	struct thread_info thread_info;
	int pid, tgid;
	struct task_struct *group_leader;
	struct mm_struct *mm;
	struct fs_struct *fs;
	struct files_struct *files;
	struct nsproxy *nsproxy;
	struct pid *thread_pid;
	const struct cred *cred;
	struct signal_struct *signal;
	struct sighand_struct *sighand;
	int *clear_child_tid;
	int pdeath_signal;
	u64 timer_slack_ns;
	unsigned long sas_ss_sp, sas_ss_size;
	unsigned int sas_ss_flags;
	unsigned int personality;
	struct restart_block restart_block;
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

/* What a clone's thread would not have: `unsupported` of a record. */
#define OTHER_DIRECTORIES 1
#define OTHER_DESCRIPTORS 2
#define OTHER_NAMESPACES 4
#define OWN_KEYS 8
#define USER_DISPATCH 16
#define OWN_SEGMENTS 32

/*
 * What security modules keep for who somebody is begins with so many words; the reader has found out which of them, if
 * any, leads to a Landlock domain.
 */
#define SECURITY 4

struct thread {
	/* In its own pid namespace. */
	s32 tid;
	s32 parent_death;
	u32 secure_bits;
	u32 stack_flags;
	u64 clear;
	u64 stack, stack_size;
	u64 slack;
	u64 unsupported;
	u64 security[SECURITY];
	/* If it does, how many domains lie around one another there. */
	u32 layers[SECURITY];
	/* Whether the process's record follows, which stands behind its first thread. */
	u64 leads;
	u64 personality;
	/*
	 * Until when it would sleep, wait for a word, or for files, and by which clock the first; whichever of them the
	 * following is about. Others are by the monotonic clock. 0: for ever.
	 */
	u64 sleeps_until, word_until, files_until, clock;
	/* What the kernel would go on with a call by in which it was interrupted, if it is in one. */
	char restart[40];
};

#define SECOND 1000000000UL

struct process {
	u64 heap_end;
	u32 subreaper;
	s32 oom_score;
	/* Whether an interval timer runs, or has run and is yet to be wound up again. */
	u64 intervals;
	/* Of its memory: the kernel's flags, and what it has registered for by membarrier(2). */
	u64 flags, barriers;
	/* How many places for contexts of asynchronous input and output it has: so many records follow. */
	u64 contexts;
	u8 actions[SIGNALS * ACTION];
};

struct context {
	/* Its number. */
	u64 address;
	u32 requests, room;
	u32 tail;
	/* Requests of which not all is done: who asked for it has not been told by its eventfd yet, too. */
	u32 in_flight;
	/* Whether some of them can be cancelled: those wait for something. */
	u64 polls;
};

#define MOST_CONTEXTS 256
#define UNTOLD ((u64)-1)

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

/* -ERESTART_RESTARTBLOCK, where a call's result will be. */
#define GOES_ON ((unsigned long)-516)

static __always_inline void tell_restart(struct task_struct *task, struct thread *thread)
{
	static const char name[] = "%ps";
	struct pt_regs *registers = (struct pt_regs *)bpf_task_pt_regs(task);
	u64 function = (u64)BPF_CORE_READ(task, restart_block.fn);
	if (BPF_CORE_READ(registers, ax) != GOES_ON)
		return;
	bpf_snprintf(thread->restart, sizeof(thread->restart), name, &function, sizeof(function));
	thread->sleeps_until = BPF_CORE_READ(task, restart_block.nanosleep.expires);
	thread->clock = BPF_CORE_READ(task, restart_block.nanosleep.clockid);
	thread->word_until = BPF_CORE_READ(task, restart_block.futex.time);
	if (bpf_core_field_exists(task->restart_block.poll.tv_sec) && BPF_CORE_READ(task, restart_block.poll.has_timeout))
		thread->files_until = BPF_CORE_READ(task, restart_block.poll.tv_sec) * SECOND +
				      BPF_CORE_READ(task, restart_block.poll.tv_nsec);
}

static __always_inline u64 unsupported(struct task_struct *task, struct mm_struct *mm, const struct cred *cred)
{
	struct task_struct *leader = BPF_CORE_READ(task, group_leader);
	u64 found = 0;
	if (BPF_CORE_READ(task, fs) != BPF_CORE_READ(leader, fs))
		found |= OTHER_DIRECTORIES;
	if (BPF_CORE_READ(task, files) != BPF_CORE_READ(leader, files))
		found |= OTHER_DESCRIPTORS;
	if (BPF_CORE_READ(task, nsproxy) != BPF_CORE_READ(leader, nsproxy))
		found |= OTHER_NAMESPACES;
	if (bpf_core_field_exists(cred->thread_keyring) &&
	    (BPF_CORE_READ(cred, thread_keyring) || BPF_CORE_READ(cred, process_keyring)))
		found |= OWN_KEYS;
	if (bpf_core_field_exists(task->thread_info.syscall_work) &&
	    bpf_core_enum_value_exists(enum syscall_work_bit, SYSCALL_WORK_BIT_SYSCALL_USER_DISPATCH) &&
	    BPF_CORE_READ(task, thread_info.syscall_work) >>
			    bpf_core_enum_value(enum syscall_work_bit, SYSCALL_WORK_BIT_SYSCALL_USER_DISPATCH) & 1)
		found |= USER_DISPATCH;
	if (bpf_core_field_exists(mm->context.ldt) && BPF_CORE_READ(mm, context.ldt))
		found |= OWN_SEGMENTS;
	return found;
}

/* An address as a number, which can be reckoned with. */
static __always_inline u64 number_of(void *address)
{
	u64 number = 0;
	bpf_probe_read_kernel(&number, sizeof(number), &address);
	return number;
}

/* A count of which each processor has a part: what the kernel calls it by, and all of it so far. */
struct parts {
	u64 name, sum;
};

/* One processor's part. It lies as far from the name as the same processor's part of a map from the name of that. */
static long add_part(u64 processor, struct parts *parts)
{
	u32 zero = 0;
	u64 name = 0, count = 0;
	void *element = bpf_map_lookup_percpu_elem(&scratch, &zero, processor);
	if (!element)
		return 1;
	bpf_probe_read_kernel(&name, sizeof(name), (void *)number_of(&scratch) + bpf_core_field_offset(struct bpf_array, pptrs));
	bpf_probe_read_kernel(&count, sizeof(count), (void *)parts->name + (number_of(element) - name));
	parts->sum += count;
	return 0;
}

#define MOST_PROCESSORS 8192
/* Of a count's name: it has no parts any more. */
#define WHOLE 3

/*
 * A request counts from when it is made until it is gone, wherever that is, and the context counts as one more. Of a
 * process that stands still they only become fewer: who adds the parts up meanwhile may find too many, and never too
 * few.
 */
static __always_inline u32 requests_of(struct kioctx *kioctx)
{
	struct parts parts = { .name = BPF_CORE_READ(kioctx, reqs.percpu_count_ptr) };
	if (parts.name & WHOLE)
		return 1;
	bpf_loop(MOST_PROCESSORS, add_part, &parts, 0);
	return parts.sum - 1;
}

static __always_inline void tell_context(struct kioctx *kioctx, struct context *context)
{
	/* Before the tail, behind which they put their events. */
	context->in_flight = requests_of(kioctx);
	context->room = BPF_CORE_READ(kioctx, nr_events);
	context->address = BPF_CORE_READ(kioctx, user_id);
	context->requests = BPF_CORE_READ(kioctx, max_reqs);
	context->tail = BPF_CORE_READ(kioctx, tail);
	context->polls = (void *)BPF_CORE_READ(kioctx, active_reqs.next) != (void *)kioctx + bpf_core_field_offset(struct kioctx, active_reqs);
}

static __always_inline u64 places_for_contexts(struct mm_struct *mm)
{
	struct kioctx_table *table;
	u64 places;
	if (!bpf_core_field_exists(mm->ioctx_table) || !bpf_core_field_exists(struct kioctx, reqs.percpu_count_ptr) ||
	    !bpf_core_field_exists(struct kioctx, tail) || !bpf_core_field_exists(struct bpf_array, pptrs))
		return UNTOLD;
	table = BPF_CORE_READ(mm, ioctx_table);
	places = table ? BPF_CORE_READ(table, nr) : 0;
	return places > MOST_CONTEXTS ? UNTOLD : places;
}

static __always_inline void tell_contexts(struct seq_file *seq, struct mm_struct *mm, u64 places)
{
	struct kioctx_table *table = BPF_CORE_READ(mm, ioctx_table);
	for (u64 place = 0; place < MOST_CONTEXTS && place < places; place++) {
		struct context context = {};
		struct kioctx *kioctx = NULL;
		bpf_probe_read_kernel(&kioctx, sizeof(kioctx),
				      (void *)table + bpf_core_field_offset(struct kioctx_table, table) + place * sizeof(kioctx));
		if (kioctx)
			tell_context(kioctx, &context);
		if (bpf_seq_write(seq, &context, sizeof(context)))
			return;
	}
}

SEC("iter/task")
int task_iterator(struct bpf_iter__task *context)
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
	const struct cred *cred = BPF_CORE_READ(task, cred);
	/* It has ended. */
	if (!mm || !signal || !hands || !number || !cred)
		return 0;
	u32 level = BPF_CORE_READ(number, level);
	void *inner = (void *)number + bpf_core_field_offset(struct pid, numbers) + level * bpf_core_type_size(struct upid) +
		      bpf_core_field_offset(struct upid, nr);
	struct thread thread = {
		.parent_death = BPF_CORE_READ(task, pdeath_signal),
		.secure_bits = BPF_CORE_READ(cred, securebits),
		.stack_flags = BPF_CORE_READ(task, sas_ss_flags),
		.clear = (u64)BPF_CORE_READ(task, clear_child_tid),
		.stack = BPF_CORE_READ(task, sas_ss_sp),
		.stack_size = BPF_CORE_READ(task, sas_ss_size),
		.slack = BPF_CORE_READ(task, timer_slack_ns),
		.unsupported = unsupported(task, mm, cred),
		.leads = BPF_CORE_READ(task, pid) == BPF_CORE_READ(task, tgid),
		.personality = BPF_CORE_READ(task, personality),
	};
	tell_restart(task, &thread);
	if (bpf_core_field_exists(cred->security))
		bpf_probe_read_kernel(thread.security, sizeof(thread.security), BPF_CORE_READ(cred, security));
	if (bpf_core_field_exists(struct landlock_ruleset, num_layers))
		for (int word = 0; word < SECURITY; word++)
			bpf_probe_read_kernel(&thread.layers[word], sizeof(u32),
					      (void *)thread.security[word] + bpf_core_field_offset(struct landlock_ruleset, num_layers));
	if (bpf_probe_read_kernel(&thread.tid, sizeof(thread.tid), inner))
		return 0;
	if (bpf_seq_write(seq, &thread, sizeof(thread)) || !thread.leads)
		return 0;
	struct process *process = bpf_map_lookup_elem(&scratch, &zero);
	if (!process)
		return 0;
	process->heap_end = BPF_CORE_READ(mm, brk);
	process->subreaper = BPF_CORE_READ_BITFIELD_PROBED(signal, is_child_subreaper);
	process->oom_score = BPF_CORE_READ(signal, oom_score_adj);
	process->flags = flags_of(mm);
	process->barriers = bpf_core_field_exists(mm->membarrier_state) ? BPF_CORE_READ(mm, membarrier_state.counter) : 0;
	process->intervals = intervals(signal);
	if (bpf_core_type_size(struct k_sigaction) != ACTION ||
	    bpf_probe_read_kernel(process->actions, sizeof(process->actions), &hands->action))
		return 0;
	u64 places = places_for_contexts(mm);
	process->contexts = places;
	if (bpf_seq_write(seq, process, sizeof(*process)) || places == UNTOLD)
		return 0;
	tell_contexts(seq, mm, places);
	return 0;
}

/* Most helpers are for programs under the kernel's own licence. */
char LICENSE[] SEC("license") = "GPL";
