// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The gate `hold`: what a transaction comes across is marked from its first touch on, and whoever outside is about to
 * change that is suspended, until the transaction has ended or he has waited for too long. See src/gate/hold.rs.
 *
 * A transaction reaches the files of the host through an overlay, which asks these hooks about the file below. Reading
 * it outside is in nobody's way. Where an object cannot be marked, its change is a conflict as without this gate.
 */

#include "suspend.h"

char LICENSE[] SEC("license") = "GPL";

/* linux/fs.h, linux/stat.h */
#define MAY_WRITE 2
#define MAY_READ 4
#define MAY_APPEND 8
#define S_IFMT 0170000
#define S_IFDIR 0040000
#define S_IFREG 0100000
#define S_IFLNK 0120000

/* What a transaction has done with an object: come across it; read the names in it. */
#define SEEN 1
#define LISTED 2

/* A mark goes with its object, or with this map. */
struct {
	__uint(type, BPF_MAP_TYPE_INODE_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, u32);
} touched SEC(".maps");

/* The file systems that the transaction has parts on, as the kernel numbers devices. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, u32);
} devices SEC(".maps");

/* The transaction's control group, and how deep that lies. */
u64 group = 0;
u32 depth = 0;
/* Whether who has a higher scheduling priority than this dooms the transaction, which finds out by itself. */
u32 by_priority = 0;
s32 priority = 0;
/* The program of the process that holds: commits of other transactions are not held, their policy is another one. */
u64 program = 0;

static __always_inline u64 program_of(struct task_struct *task)
{
	return (u64)BPF_CORE_READ(task, mm, exe_file, f_inode);
}

static __always_inline int is_inside(void)
{
	return bpf_get_current_ancestor_cgroup_id(depth) == group;
}

static __always_inline int touch(struct inode *inode, u32 how)
{
	u32 kind = inode->i_mode & S_IFMT, device = inode->i_sb->s_dev, *mark;

	if (kind != S_IFREG && kind != S_IFDIR && kind != S_IFLNK)
		return 0;
	if (!bpf_map_lookup_elem(&devices, &device))
		return 0;
	mark = bpf_inode_storage_get(&touched, inode, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (mark)
		*mark |= how;
	return 0;
}

static __noinline int hold_back(struct inode *inode)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (by_priority && task->static_prio < priority)
		return 0;
	if (program_of(task) == program)
		return 0;
	return suspend(inode);
}

static __always_inline int change(struct inode *inode, u32 how)
{
	u32 *mark;

	if (!inode)
		return 0;
	mark = bpf_inode_storage_get(&touched, inode, 0, 0);
	if (!mark || !(*mark & how) || is_inside())
		return 0;
	return hold_back(inode);
}

/* Of names in a directory, or of what is in a file. */
static __always_inline int change_content(struct inode *inode)
{
	return change(inode, (inode->i_mode & S_IFMT) == S_IFDIR ? LISTED : SEEN);
}

SEC("lsm/inode_permission")
int BPF_PROG(hold_permission, struct inode *inode, int mask)
{
	if (mask & (MAY_WRITE | MAY_APPEND))
		return change_content(inode);
	return is_inside() ? touch(inode, SEEN) : 0;
}

SEC("lsm/file_permission")
int BPF_PROG(hold_file, struct file *file, int mask)
{
	struct inode *inode = file->f_inode;

	/* Who scans files for others may be waited for by the transaction. */
	if ((file->f_mode & (FMODE_NONOTIFY | FMODE_NONOTIFY_PERM)) == FMODE_NONOTIFY)
		return 0;
	if (mask & (MAY_WRITE | MAY_APPEND))
		return change_content(inode);
	if (!is_inside())
		return 0;
	return touch(inode, (inode->i_mode & S_IFMT) == S_IFDIR ? SEEN | LISTED : SEEN);
}

SEC("lsm/inode_getattr")
int BPF_PROG(hold_getattr, const struct path *path)
{
	struct inode *inode = path->dentry->d_inode;

	return inode && is_inside() ? touch(inode, SEEN) : 0;
}

SEC("lsm/inode_readlink")
int BPF_PROG(hold_readlink, struct dentry *dentry)
{
	struct inode *inode = dentry->d_inode;

	return inode && is_inside() ? touch(inode, SEEN) : 0;
}

SEC("lsm/inode_setattr")
int BPF_PROG(hold_setattr, struct mnt_idmap *idmap, struct dentry *dentry, struct iattr *attr)
{
	struct inode *inode = dentry->d_inode;

	return inode ? change_content(inode) : 0;
}

SEC("lsm/inode_setxattr")
int BPF_PROG(hold_setxattr, struct mnt_idmap *idmap, struct dentry *dentry)
{
	struct inode *inode = dentry->d_inode;

	return inode ? change_content(inode) : 0;
}

SEC("lsm/inode_removexattr")
int BPF_PROG(hold_removexattr, struct mnt_idmap *idmap, struct dentry *dentry)
{
	struct inode *inode = dentry->d_inode;

	return inode ? change_content(inode) : 0;
}

/* A name of it comes or goes. */
SEC("lsm/inode_link")
int BPF_PROG(hold_link, struct dentry *old)
{
	return change(old->d_inode, SEEN);
}

SEC("lsm/inode_unlink")
int BPF_PROG(hold_unlink, struct inode *dir, struct dentry *dentry)
{
	return change(dentry->d_inode, SEEN);
}

SEC("lsm/inode_rmdir")
int BPF_PROG(hold_rmdir, struct inode *dir, struct dentry *dentry)
{
	return change(dentry->d_inode, SEEN);
}

SEC("lsm/inode_rename")
int BPF_PROG(hold_rename, struct inode *from, struct dentry *old, struct inode *to, struct dentry *new)
{
	int held = change(old->d_inode, SEEN);

	return held ? held : change(new->d_inode, SEEN);
}

struct introduction { s32 holder; u32 by_priority; u64 group; u32 depth; u32 unused; };

/* Run by the process that holds. */
SEC("syscall")
int introduce(struct introduction *introduction)
{
	struct task_struct *task = bpf_get_current_task_btf();

	group = introduction->group;
	depth = introduction->depth;
	by_priority = introduction->by_priority;
	priority = task->static_prio;
	program = program_of(task);
	return introduce_to(introduction->holder);
}
