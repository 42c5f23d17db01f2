// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The gate of a commit on the host. While it is closed, whoever else touches a marked object, or looks up a name in a
 * marked directory, is suspended until the commit is in place. See src/gate/suspending.rs.
 */

#include "suspend.h"

char LICENSE[] SEC("license") = "GPL";

/* The objects that nobody else is to touch. A mark goes with its object, or with this map. */
struct {
	__uint(type, BPF_MAP_TYPE_INODE_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, u32);
} marks SEC(".maps");

static __always_inline int at(struct inode *inode)
{
	if (!inode || !bpf_inode_storage_get(&marks, inode, 0, 0))
		return 0;
	return suspend(inode);
}

/* Every name that is looked up in a directory asks for it; so does opening, and changing names. */
SEC("lsm/inode_permission")
int BPF_PROG(gate_permission, struct inode *inode, int mask)
{
	return at(inode);
}

SEC("lsm/inode_getattr")
int BPF_PROG(gate_getattr, const struct path *path)
{
	struct dentry *dentry = path->dentry;

	return at(dentry->d_inode);
}

SEC("lsm/inode_setattr")
int BPF_PROG(gate_setattr, struct mnt_idmap *idmap, struct dentry *dentry, struct iattr *attr)
{
	return at(dentry->d_inode);
}

SEC("lsm/inode_setxattr")
int BPF_PROG(gate_setxattr, struct mnt_idmap *idmap, struct dentry *dentry)
{
	return at(dentry->d_inode);
}

SEC("lsm/inode_removexattr")
int BPF_PROG(gate_removexattr, struct mnt_idmap *idmap, struct dentry *dentry)
{
	return at(dentry->d_inode);
}

/* Reading, writing and listing by what was opened before. */
SEC("lsm/file_permission")
int BPF_PROG(gate_file, struct file *file, int mask)
{
	/* The committer may be waiting for what a scanner says of this very file. */
	if ((file->f_mode & (FMODE_NONOTIFY | FMODE_NONOTIFY_PERM)) == FMODE_NONOTIFY)
		return 0;
	return at(file->f_inode);
}

SEC("lsm/mmap_file")
int BPF_PROG(gate_mmap, struct file *file)
{
	struct task_struct *task = bpf_get_current_task_btf();

	/* Past its point of no return an execution that fails ends the process. */
	if (!file || !bpf_core_field_exists(task->in_execve) || BPF_CORE_READ_BITFIELD(task, in_execve))
		return 0;
	return at(file->f_inode);
}

struct introduction { s32 holder; };

/* Run by the process that commits: who it is, and who holds the file. */
SEC("syscall")
int introduce(struct introduction *introduction)
{
	return introduce_to(introduction->holder);
}
