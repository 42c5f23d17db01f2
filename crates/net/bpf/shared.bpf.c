// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* A guest owns its addresses on the shared stack, and nothing else. See docs/network.md and src/lib.rs. */

#include "bind.h"
#include "connect.h"
#include "create.h"
#include "host.h"
#include "lookup.h"
#include "send.h"
#include "show.h"
#include "steer.h"
#include "ingress.h"

/* Most helpers are for programs under the kernel's own licence. */
char LICENSE[] SEC("license") = "GPL";
