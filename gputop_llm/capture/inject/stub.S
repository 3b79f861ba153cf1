/* What our own thread in the target runs, from a page of its own: position-independent, no data but its block.

   start(block) is the start routine of pthread_create. Each wait in it is bounded and each way out closes what it opened
   and unmaps its page and its block. It inherits a mask that blocks every signal. stub.py holds the assembled bytes and
   the same layout of the block; a test assembles this file and compares. */
.intel_syntax noprefix

/* struct gputop_call, which the client is given, comes first. */
.set CALL_COMMANDS, 4           /* int32: read end of the commands */
.set CALL_RECORDS, 8            /* int32: write end of the records */
.set CALL_LIBRARY, 12           /* int32: the memfd, -1: none */
.set CALL_SCRATCH, 16           /* uint64: what to unmap, and how many bytes */
.set CALL_SCRATCH_BYTES, 24
.set PTHREAD_SELF, 32
.set PTHREAD_DETACH, 40
.set DLOPEN, 48
.set DLSYM, 56
.set DLERROR, 64
.set ENTRY, 72                  /* the client's entry; 0: load the library */
.set GADGET, 80                 /* `syscall; ret` outside of the page */
.set ERROR, 88                  /* -errno, or where dlerror's text is */
.set STATE, 96                  /* int32, see State in stub.py */
.set OTHER_COMMANDS, 100        /* int32: the other ends, until the monitor has opened them */
.set OTHER_RECORDS, 104
.set PAIR, 112                  /* int32[2]: a new pipe */
.set POLLED, 120                /* struct pollfd */
.set ANSWER, 128
.set CREATED, 136               /* where pthread_create puts its pthread_t */
.set PATH, 144
.set SYMBOL, 208
.set MEMFD_NAME, 240
.set THREAD_NAME, 304

.set SYS_read, 0
.set SYS_close, 3
.set SYS_poll, 7
.set SYS_munmap, 11
.set SYS_prctl, 157
.set SYS_pipe2, 293
.set SYS_memfd_create, 319
.set CLOEXEC, 0x80000           /* O_CLOEXEC */
.set MEMFD_SEALED_NOEXEC, 11    /* MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL (Linux 6.3) */
.set MEMFD, 3                   /* MFD_CLOEXEC | MFD_ALLOW_SEALING */
.set EINVAL, 22
.set GO_MS, 10000
.set READ_ERROR_MS, 1000

start:
        push rbx
        mov rbx, rdi
        mov dword ptr [rbx + STATE], 1
        call name_it
        call [rbx + PTHREAD_SELF]
        mov rdi, rax
        call [rbx + PTHREAD_DETACH]

        cmp qword ptr [rbx + ENTRY], 0
        jne pipes
        lea rdi, [rbx + MEMFD_NAME]
        mov esi, MEMFD_SEALED_NOEXEC
        mov eax, SYS_memfd_create
        syscall
        cmp rax, -EINVAL
        jne 1f
        lea rdi, [rbx + MEMFD_NAME]
        mov esi, MEMFD
        mov eax, SYS_memfd_create
        syscall
1:      mov ecx, 0x81
        test rax, rax
        js failed
        mov [rbx + CALL_LIBRARY], eax

pipes:
        lea rdi, [rbx + PAIR]
        mov esi, CLOEXEC
        mov eax, SYS_pipe2
        syscall
        mov ecx, 0x82
        test rax, rax
        js failed
        mov rax, [rbx + PAIR]
        mov [rbx + CALL_COMMANDS], eax
        shr rax, 32
        mov [rbx + OTHER_COMMANDS], eax
        lea rdi, [rbx + PAIR]
        mov esi, CLOEXEC
        mov eax, SYS_pipe2
        syscall
        mov ecx, 0x82
        test rax, rax
        js failed
        mov rax, [rbx + PAIR]
        mov [rbx + OTHER_RECORDS], eax
        shr rax, 32
        mov [rbx + CALL_RECORDS], eax
        mov dword ptr [rbx + STATE], 2

        /* The monitor opens the other ends, writes the library and says go; if it has died, all is put away. */
        mov eax, [rbx + CALL_COMMANDS]
        mov [rbx + POLLED], eax
        mov dword ptr [rbx + POLLED + 4], 1     /* POLLIN */
        lea rdi, [rbx + POLLED]
        mov esi, 1
        mov edx, GO_MS
        mov eax, SYS_poll
        syscall
        cmp rax, 1
        jne put_away
        mov edi, [rbx + CALL_COMMANDS]
        lea rsi, [rbx + ANSWER]
        mov edx, 1
        mov eax, SYS_read
        syscall
        cmp rax, 1
        jne put_away
        cmp byte ptr [rbx + ANSWER], 'G'
        jne put_away
        mov dword ptr [rbx + STATE], 3
        lea rsi, [rbx + OTHER_COMMANDS]
        call close_it
        lea rsi, [rbx + OTHER_RECORDS]
        call close_it

        cmp qword ptr [rbx + ENTRY], 0
        jne serve
        mov dword ptr [rbx + THREAD_NAME + 7], 0x64616f6c       /* gputop-load */
        call name_it
        lea rdi, [rbx + PATH]
        mov esi, 2                              /* RTLD_NOW | RTLD_LOCAL */
        call [rbx + DLOPEN]
        mov ecx, 0x83
        test rax, rax
        jz not_loaded
        mov rdi, rax
        lea rsi, [rbx + SYMBOL]
        call [rbx + DLSYM]
        mov ecx, 0x84
        test rax, rax
        jz not_loaded
        mov [rbx + ENTRY], rax

serve:
        mov dword ptr [rbx + THREAD_NAME + 7], 0x6b726f77       /* gputop-work */
        call name_it
        mov dword ptr [rbx + STATE], 4
        mov rax, [rbx + ENTRY]
        mov rdi, rbx
        pop rbx
        jmp rax

not_loaded:
        push rcx
        push rcx
        call [rbx + DLERROR]
        pop rcx
        pop rcx
failed:
        mov [rbx + ERROR], rax
        mov [rbx + STATE], ecx
        xor edi, edi
        xor esi, esi
        mov edx, READ_ERROR_MS
        mov eax, SYS_poll
        syscall

put_away:
        lea rsi, [rbx + CALL_COMMANDS]
        call close_it
        lea rsi, [rbx + CALL_RECORDS]
        call close_it
        lea rsi, [rbx + CALL_LIBRARY]
        call close_it
        lea rsi, [rbx + OTHER_COMMANDS]
        call close_it
        lea rsi, [rbx + OTHER_RECORDS]
        call close_it
        mov rdi, [rbx + CALL_SCRATCH]
        mov rsi, [rbx + CALL_SCRATCH_BYTES]
        mov rdx, [rbx + GADGET]
        pop rbx
        mov eax, SYS_munmap
        jmp rdx                                 /* returns to the thread's start, not to the page that is gone */

name_it:
        mov edi, 15                             /* PR_SET_NAME */
        lea rsi, [rbx + THREAD_NAME]
        mov eax, SYS_prctl
        syscall
        ret

close_it:                                       /* rsi: where the descriptor is */
        mov edi, [rsi]
        mov dword ptr [rsi], -1
        test edi, edi
        js 1f
        mov eax, SYS_close
        syscall
1:      ret
