import stat

link = STAGE + "/own/link"
os.symlink("nowhere", link)
# What names a link is read, and looked at, by its descriptor alone.
kept = os.open(link, os.O_PATH | os.O_NOFOLLOW)


def check():
    assert stat.S_ISLNK(os.stat(kept).st_mode)
    assert os.readlink("", dir_fd=kept) == "nowhere"
    assert os.readlink(f"/proc/self/fd/{kept}") == link


stand(check)
