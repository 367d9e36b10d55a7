"""Analysis of ELF files, Go binaries and OpenSSL. Pure; the input may be hostile."""
