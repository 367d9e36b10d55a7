/* Empty on purpose: BCC includes it, and brings its own bpf.h. */
#pragma once
