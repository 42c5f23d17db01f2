/* Keys of a session keyring (keyrings(7)).
 *   keys hold COMMAND...  begins a session keyring with a key in it, and executes the command
 *   keys look             says "found" where its session keyring has that key, and else "none" */
#include <linux/keyctl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int count, char **words)
{
    if (count > 2 && !strcmp(words[1], "hold")) {
        if (syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, "pando-test") < 0) return perror("keyctl"), 2;
        if (syscall(SYS_add_key, "user", "pando-secret", "secret", 6, KEY_SPEC_SESSION_KEYRING) < 0) return perror("add_key"), 2;
        execvp(words[2], words + 2);
        return perror(words[2]), 2;
    }
    puts(syscall(SYS_keyctl, KEYCTL_SEARCH, KEY_SPEC_SESSION_KEYRING, "user", "pando-secret", 0) < 0 ? "none" : "found");
    return 0;
}
