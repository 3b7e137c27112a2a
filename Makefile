# hcache - build, test, measure.  `make help` lists the targets.
#
# Everything is built out of tree, in build/<variant>/.  Variants: release (default), debug, asan,
# tsan, cov; `make VARIANT=asan test`.  build/hcache points at the release program.

COMMA   := ,
VARIANT ?= release
B       := build/$(VARIANT)
CC      ?= cc
PKGS    := liburing sqlite3 jansson libmicrohttpd libpcre2-8 libutf8proc libssl libcrypto hiredis libcurl libedit

WARN     := -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes \
            -Wmissing-prototypes -Wvla -Werror=implicit -Werror=int-conversion
# Messages may be truncated to their buffers; CHECK(!"reason") is an idiom; tests have tables of
# long strings; each compiler must accept the other's names of warnings.
WARN     += -Wno-format-truncation -Wno-string-conversion -Wno-string-concatenation \
            -Wno-unknown-warning-option
# -g1 gives backtraces names and lines, but no variables: a sixth of the compiler's time less.
SYMBOLS  ?= -g
# -ffp-contract=off: if the compiler fused operations, results would depend on it.  Fused steps are
# written as fma.
COMMON   := -std=c11 -D_GNU_SOURCE -I. -Isrc -Ilib -Iinclude -I$(B)/gen -MMD -MP $(SYMBOLS) -pthread \
            -ffp-contract=off -fno-math-errno $(WARN)
# The shared library and the program use the same objects, so that they are compiled once.  Hidden
# symbols are called and addressed directly, as in a program: the kernels' machine code is the same
# as without -fPIC.
LIBRARY  := -fPIC -fvisibility=hidden
# -fno-var-tracking: with variable tracking, gcc needs minutes for one file of kernels under the
# sanitizers.
OPT_release := -O2
OPT_debug   := -O1 -DHC_DEBUG
OPT_asan    := -O1 -DHC_DEBUG -fsanitize=address,undefined -fno-sanitize-recover=undefined \
               -fno-omit-frame-pointer -fno-var-tracking
OPT_tsan    := -O1 -DHC_DEBUG -fsanitize=thread -fno-omit-frame-pointer -fno-var-tracking
OPT_cov     := -O0 -DHC_DEBUG --coverage
# For clang: build/fuzz/fuzz looks for inputs that break a parser (tests/fuzz, make fuzz).
# FUZZ_TRACE=0 does not trace comparisons: the fuzzer learns less from an input, and runs 1.3 to 2.2
# times as many in the same time.
FUZZ_TRACE  ?= 1
FUZZ_COVER  := $(if $(filter 0,$(FUZZ_TRACE)),-fsanitize-coverage=inline-8bit-counters \
               -fsanitize-coverage=pc-table,-fsanitize=fuzzer-no-link)
# Functions that no target reaches are left out, and so is what they would need.
OPT_fuzz    := -O2 -DHC_DEBUG -ffunction-sections -Wl,--gc-sections $(FUZZ_COVER) -fsanitize=address,undefined \
               -fno-sanitize-recover=undefined -fno-omit-frame-pointer
VARIANTS    := release debug asan tsan cov fuzz
ifeq ($(filter $(VARIANT),$(VARIANTS)),)
$(error VARIANT=$(VARIANT) is none of: $(VARIANTS))
endif

CFLAGS   ?=
PKG_CFLAGS := $(shell pkg-config --cflags $(filter-out libedit hiredis,$(PKGS)) 2>/dev/null)
ALL_CFLAGS := $(COMMON) $(OPT_$(VARIANT)) $(PKG_CFLAGS) $(CFLAGS)
LDLIBS   := $(shell pkg-config --libs $(PKGS) 2>/dev/null) -lxxhash -lm -pthread
LDFLAGS  := $(OPT_$(VARIANT)) -pthread

# The thread sanitizer does not look into kernels (KERNELS=traced: it does): they share nothing but
# the rows that their callers divide, and a traced kernel is 10 to 30 times as slow.
KERN_tsan   := $(if $(filter tsan,$(VARIANT)),$(if $(filter traced,$(KERNELS)),,-O2 -fno-sanitize=thread))
# Kernels for one instruction set live in files named after it and are chosen at run time.
ARCH_O      := $(if $(filter release,$(VARIANT)),-O3)$(KERN_tsan)
ARCH_avx2   := -mavx2 -mfma -mf16c $(ARCH_O)
ARCH_avx512 := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c $(ARCH_O)
ARCH_vnni   := $(ARCH_avx512) -mavx512vnni
ARCH_vbmi2  := $(ARCH_avx512) -mavx512vbmi -mavx512vbmi2 -mbmi2 -mpopcnt
ARCH_amx    := $(ARCH_vnni) -mamx-tile -mamx-int8 -mamx-bf16

# The CUDA backend is a shared library that the program loads for --device cuda.  It is built with the
# release program if nvcc exists (CUDA=0: it is not).  It has machine code for the GPUs of CUDA_ARCHS;
# later GPUs compile it from PTX when they load it.  Each
# of the three architectures takes a third of nvcc's time.
CUDA_ARCHS  ?= 80 89 90
NVCC        := $(shell command -v nvcc 2>/dev/null)
CUDA        ?= $(if $(and $(NVCC),$(filter release,$(VARIANT))),1,0)
CUDA_SRC    := $(sort $(wildcard cuda/*.c cuda/untried/*.c))
CUDA_KERNEL := $(sort $(wildcard cuda/*.cu))
CUDA_HOME   := $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
NVCC_OPT    ?= -O3
NVCC_FLAGS  := -std=c++17 $(NVCC_OPT) -I. -Isrc -MD -MP --fmad=true -Xcompiler -fPIC,-fvisibility=hidden \
               $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$a$(COMMA)code=sm_$a) \
               $(foreach a,$(lastword $(CUDA_ARCHS)),-gencode arch=compute_$a$(COMMA)code=compute_$a)
CUDA_LIBS   := -L$(CUDA_HOME)/lib64 -lcudart_static -lstdc++ -ldl -lrt

# The same backend on an emulated GPU, for tests (sim/cuda_emu).  Not built with sanitizers, which
# cannot follow its coroutines.
EMULATED    := $(if $(filter x86_64,$(shell uname -m)),$(if $(filter release debug,$(VARIANT)),1))
EMU_SRC     := $(filter-out cuda/cuda_blas.c,$(CUDA_SRC))
EMU_OBJ     := $(EMU_SRC:%.c=$(B)/emu/%.o) $(CUDA_KERNEL:%.cu=$(B)/emu/%.o) \
               $(patsubst %.cc,$(B)/emu/%.o,$(wildcard sim/cuda_emu/*.cc))
EMU_FLAGS   := -DHCACHE_CUDA_EMULATED -Isim/cuda_emu
# (Without the fma instruction every fmaf is a call.)
EMU_ARCH    := $(if $(shell grep -m1 -wo fma /proc/cpuinfo 2>/dev/null),-mavx2 -mfma)

# What the public functions are made of; the rest of src/api is the server's.
SERVICE := $(addprefix src/api/,$(addsuffix .c,context control counts dialog forms hcache memory_plan \
           service stack ticket truncate truncate_text))
SRC   := $(sort $(wildcard lib/*/*.c src/*/*.c src/*/*/*.c))
# Parsers need no kernels, whose compilation under the sanitizers takes minutes.
FUZZED := src/tensor/dtype.c src/api/truncate_text.c
SRC   := $(if $(filter fuzz,$(VARIANT)),$(FUZZED) $(filter-out src/tensor/% src/save/saver% src/save/save_% src/restore/restore% src/restore/profile% src/restore/kvcache% src/engine/% $(SERVICE),$(SRC)),$(SRC))
# FOLDERS limits a build of tests to some directories of src/ and their tests.  A quick run of a
# sanitizer uses it, and so does coverage.  Tests that also need other directories are left out.
FOLDERS ?= $(if $(filter cov,$(VARIANT)),base io store seal redis)
NEED_OTHERS := tests/api/test_retoken.c tests/store/test_victims.c
SRC   := $(if $(FOLDERS),$(filter $(FOLDERS:%=src/%/%) $(FOLDERS:%=lib/%/%) src/tensor/dtype.c,$(SRC)),$(SRC))
APPS  := $(sort $(wildcard apps/*.c))
BENCH := $(sort $(wildcard bench/*.c))
# For tests and experiments: a simulated disk, simulated caches and loads.
SIM   := $(sort $(wildcard sim/*.c))
TEST_DIRS := $(if $(FOLDERS),$(FOLDERS:%=tests/%),tests/*)
ALL_TEST_SRC := $(sort $(wildcard $(TEST_DIRS:%=%/test_*.c)))
TEST_SRC := $(if $(EMULATED),$(ALL_TEST_SRC),$(filter-out %_emulated.c,$(ALL_TEST_SRC)))
TEST_SRC := $(if $(FOLDERS),$(filter-out $(NEED_OTHERS),$(TEST_SRC)),$(TEST_SRC))
TESTLIB_SRC := $(sort $(filter-out $(ALL_TEST_SRC),$(wildcard $(TEST_DIRS:%=%/*.c))) $(if $(FOLDERS),,mpi/call.c mpi/group.c mpi/group_ops.c mpi/message.c mpi/peer.c mpi/rows.c mpi/serve.c $(wildcard apps/pack_head.c apps/pack_write.c apps/talk.c apps/timeline*.c)))

OBJ      := $(SRC:%.c=$(B)/%.o)
CUDA_OBJ := $(if $(filter 1,$(CUDA)),$(CUDA_SRC:%.c=$(B)/%.o) $(CUDA_KERNEL:%.cu=$(B)/%.o))
PLUGIN   := $(if $(CUDA_OBJ),$(B)/hcache-cuda.so) $(if $(filter release,$(VARIANT)),$(shell pkg-config --exists ompi-c && echo $(B)/hcache-mpi.so))
APP_OBJ  := $(APPS:%.c=$(B)/%.o) $(BENCH:%.c=$(B)/%.o)
SIM_OBJ  := $(SIM:%.c=$(B)/%.o)
TEST_BIN := $(TEST_SRC:%.c=$(B)/%)
TESTLIB_OBJ := $(TESTLIB_SRC:%.c=$(B)/%.o)

# One job per processor, unless the caller has chosen the number.
JOBS = $(if $(findstring -j,$(MAKEFLAGS)),,-j$(shell nproc 2>/dev/null || echo 2))

all: $(B)/hcache $(PLUGIN) $(if $(filter release,$(VARIANT)),build/hcache)

build/hcache: $(B)/hcache
	@ln -sfn release/hcache build/hcache

# --- stamps: files that are rewritten only when their text changes ------------------------------

# $(call stamp,FILE,TEXT): rewrites FILE if its text differs from TEXT.
define stamp
mkdir -p $(dir $(1)); printf '%s\n' '$(2)' | cmp -s - $(1) || printf '%s\n' '$(2)' >$(1)
endef

# Changed flags rebuild everything.  A changed set of files relinks, so that a deleted file leaves
# the library.  If the compiler or a library is missing, one message says what to do.
$(B)/flags.stamp: FORCE
	@command -v $(firstword $(CC)) >/dev/null && pkg-config --exists $(PKGS) || \
	    { echo 'make: the compiler or a library is missing: run tools/setup.sh' >&2; exit 1; }
	@$(call stamp,$@,$(NVCC) $(NVCC_FLAGS) $(CC) $(ALL_CFLAGS) $(LIBRARY) $(TEST_OPT) $(ARCH_avx2) $(ARCH_amx) $(LDFLAGS) $(LDLIBS))
$(B)/files.stamp: FORCE
	@$(call stamp,$@,$(OBJ) $(CUDA_OBJ) $(APP_OBJ) $(SIM_OBJ) $(TESTLIB_OBJ))
$(B)/gen/build_id.h: FORCE
	@$(call stamp,$@,#define BUILD_ID "$(shell git describe --always --dirty 2>/dev/null || echo unknown)")
$(B)/apps/main.o $(B)/apps/cmd_profile.o: $(B)/gen/build_id.h

# The page is embedded in the program unchanged.
$(B)/src/server/page.o: $(wildcard src/server/page/*)

# --- rules --------------------------------------------------------------------------------------

$(B)/libhcache.a: $(OBJ) $(B)/files.stamp
	@rm -f $@
	@$(AR) rcs $@ $(OBJ)

# It has its own copies of the functions of base/ and tensor/ that it uses.
$(B)/hcache-cuda.so: $(CUDA_OBJ) $(B)/libhcache.a
	@echo "  LINK $@"
	@$(CC) -shared $(LDFLAGS) -Wl,-z,defs -Wl,--as-needed -Wl,--exclude-libs,ALL -o $@ $(CUDA_OBJ) $(B)/libhcache.a $(LDLIBS) $(CUDA_LIBS)

# The same, for the ranks that are processes.
$(B)/hcache-mpi.so: $(wildcard mpi/*.[ch]) $(B)/libhcache.a
	@echo "  LINK $@"
	@$(CC) $(ALL_CFLAGS) $(LIBRARY) $(shell pkg-config --cflags ompi-c) -shared $(LDFLAGS) -Wl,-z,defs -Wl,--as-needed -Wl,--exclude-libs,ALL -o $@ $(filter %.c,$^) $(B)/libhcache.a $(LDLIBS) $(shell pkg-config --libs ompi-c)

$(B)/libsim.a: $(SIM_OBJ) $(B)/files.stamp
	@rm -f $@
	@$(AR) rcs $@ $(SIM_OBJ)

$(B)/hcache: $(APP_OBJ) $(B)/libsim.a $(B)/libhcache.a
	@echo "  LINK $@"
	@$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(OBJ) $(CUDA_OBJ): MODULE_FLAGS := $(LIBRARY)
# Tests are compiled in half of -O2's time. Most of them leave the state unused that cmocka passes.
TEST_OPT := $(if $(filter release,$(VARIANT)),-O1)
$(B)/tests/%.o: MODULE_FLAGS := $(TEST_OPT) -Wno-unused-parameter
# gcc notes that the ABI has changed for the vectors of these files, which no external function has.
$(B)/%_portable.o: ARCH_FLAGS := -Wno-psabi $(KERN_tsan)
$(B)/src/tensor/ref/%.o: ARCH_FLAGS := $(KERN_tsan)
$(B)/%_avx2.o: ARCH_FLAGS := $(ARCH_avx2)
$(B)/%_avx512.o: ARCH_FLAGS := $(ARCH_avx512)
$(B)/%_avx512bf16.o: ARCH_FLAGS := $(ARCH_avx512) -mavx512bf16 -Wno-unused-function
$(B)/%_vnni.o: ARCH_FLAGS := $(ARCH_vnni)
$(B)/%_vbmi2.o: ARCH_FLAGS := $(ARCH_vbmi2)
$(B)/%_amx.o: ARCH_FLAGS := $(ARCH_amx)
# These tests have kernels compiled in, which would take the compiler a minute.
$(B)/tests/tensor/test_fetch_%.o: ARCH_FLAGS := -O0 -Wno-psabi

$(B)/%.o: %.c $(B)/flags.stamp
	@mkdir -p $(@D)
	@echo "  CC   $<"
	@$(CC) $(ALL_CFLAGS) $(MODULE_FLAGS) $(ARCH_FLAGS) -c -o $@ $<

$(CUDA_SRC:%.c=$(B)/%.o): ARCH_FLAGS := -isystem $(CUDA_HOME)/include
$(B)/%.o: %.cu $(B)/flags.stamp
	@mkdir -p $(@D)
	@echo "  NVCC $<"
	@$(NVCC) $(NVCC_FLAGS) -MF $(@:.o=.d) -c -o $@ $<

$(B)/emu/%.o: %.c $(B)/flags.stamp
	@mkdir -p $(@D)
	@echo "  EMU  $<"
	@$(CC) $(ALL_CFLAGS) $(EMU_FLAGS) -c -o $@ $<
$(B)/emu/%.o: %.cu $(B)/flags.stamp
	@mkdir -p $(@D)
	@echo "  EMU  $<"
	@$(CXX) -std=c++17 $(SYMBOLS) -O2 $(EMU_ARCH) -ffp-contract=off -I. -Isrc -MMD -MP $(EMU_FLAGS) -x c++ -c -o $@ $<
$(B)/emu/%.o: %.cc $(B)/flags.stamp
	@mkdir -p $(@D)
	@$(CXX) -std=c++17 $(SYMBOLS) -O2 -I. -Isrc -MMD -MP $(EMU_FLAGS) -c -o $@ $<

# The files that tests share are an archive, so that a test is linked only with those that it uses,
# and has 1 MB instead of 22.  unit.c and strict.c act before and after main and no test refers
# to them, so they are linked explicitly.
TEST_MAIN := $(filter %/base/unit.o %/strict.o,$(TESTLIB_OBJ))
STRICT_LOCKS := $(filter %/strict_locks.o,$(TESTLIB_OBJ))
TESTLIB := $(B)/tests/libtests.a
# Three hundred programs are linked in half the time by gold, where it exists.
TEST_LD := $(if $(shell command -v ld.gold),-fuse-ld=gold)
# Each of the two archives uses functions of the other (--wrap below).
TEST_ARCHIVES := -Wl,--start-group $(TESTLIB) $(B)/libsim.a $(B)/libhcache.a -Wl,--end-group
$(TESTLIB): $(TESTLIB_OBJ) $(B)/files.stamp
	@mkdir -p $(@D)
	@rm -f $@
	@$(AR) rcs $@ $(filter-out $(TEST_MAIN) $(STRICT_LOCKS),$(TESTLIB_OBJ))

$(B)/tests/%_emulated: $(B)/tests/%_emulated.o $(EMU_OBJ) $(TESTLIB) $(B)/libsim.a $(B)/libhcache.a
	@echo "  LINK $@"
	@$(CXX) $(LDFLAGS) $(TEST_LD) $(WRAP_STATE) -o $@ $< $(TEST_MAIN) $(EMU_OBJ) $(TEST_ARCHIVES) $(LDLIBS) -lcmocka

# A libcufile.so.0 that reads into the memory of emulated GPUs.
CUFILE_FAKE := $(B)/sim/cuda_emu/libcufile.so.0
$(CUFILE_FAKE): sim/cuda_emu/cufile/cufile_fake.c sim/cuda_emu/cufile/cufile_fake.h $(B)/flags.stamp
	@mkdir -p $(@D)
	@$(CC) $(ALL_CFLAGS) -fPIC -shared -Wl,-soname,libcufile.so.0 -o $@ $<
$(B)/tests/engine/test_direct_emulated: | $(CUFILE_FAKE)

# The whole program on the emulated GPU, for the tests of its commands.
$(B)/hcache_emulated: $(APP_OBJ) $(EMU_OBJ) $(B)/libsim.a $(B)/libhcache.a
	@echo "  LINK $@"
	@$(CXX) $(LDFLAGS) -o $@ $^ $(LDLIBS)

# Tests of a release build report at their end what they have not freed, and fail: the leak
# sanitizer's allocator needs no other object files.  Without one in the compiler, leaks are not
# checked here.  (make VARIANT=asan finds leaks, too.)
LEAKS := $(if $(filter release,$(VARIANT)),$(if $(filter /%,$(shell $(CC) -print-file-name=liblsan.so)),-fsanitize=leak))
# Not checked: the first of these ends children that leak on purpose, the others count allocations
# themselves.
$(addprefix $(B)/tests/,base/test_mem base/test_json_scan engine/test_no_malloc): private LEAKS :=

$(B)/tests/%: $(B)/tests/%.o $(TESTLIB) $(B)/libsim.a $(B)/libhcache.a
	@echo "  LINK $@"
	@$(CC) $(LDFLAGS) $(TEST_LD) $(LEAKS) $(WRAP_STATE) $(WRAP) -o $@ $< $(TEST_MAIN) $(TEST_ARCHIVES) $(LDLIBS) -lcmocka

# The linker redirects the tests' calls of locks to tests/base/strict_locks.c, and the ends of stores
# and pools to strict_store.c and strict_pool.c.
wrapped = $(addprefix -Wl$(COMMA)--wrap=,$(1))
WRAP_STATE := $(call wrapped,store_close kv_pool_destroy)
WRAP := $(call wrapped,$(addprefix pthread_,mutex_init mutex_lock mutex_unlock mutex_destroy cond_init cond_destroy \
        cond_wait cond_timedwait) thread_create) \
        $(STRICT_LOCKS)

# These programs run all threads in one: the linker redirects their calls of locks and clocks to
# tests/restore/turns.c.
TURNS := $(addprefix $(B)/tests/restore/test_,lives life_memory copies)
$(TURNS): private WRAP := $(call wrapped,clock_now_ns clock_sleep_ns clock_wall_s \
         pthread_cond_broadcast pthread_cond_signal pthread_cond_timedwait pthread_cond_wait \
         pthread_create pthread_join pthread_mutex_destroy pthread_mutex_init pthread_mutex_lock \
         pthread_mutex_trylock pthread_mutex_unlock sched_setscheduler setpriority)

# This one tests a part of the CUDA backend that needs no GPU.
CARVE := $(B)/tests/tensor/test_carve
$(CARVE): $(B)/cuda/carve.o
$(CARVE): private WRAP += $(B)/cuda/carve.o

# This program has a clock of its own.
PROFILE_CLOCK := $(B)/tests/restore/test_profile_fit
$(PROFILE_CLOCK): private WRAP += $(call wrapped,clock_now_ns clock_sleep_ns clock_cpu_now)

tests: $(TEST_BIN) $(PLUGIN) $(if $(filter release,$(VARIANT)),libs) $(if $(EMULATED),$(B)/hcache_emulated)

# --- the library for other programs, and installing ---------------------------------------------

# The libraries have only what the public functions need: the server is left out.  Both export only
# hcache_* (include/hcache.h makes these visible, $(LIBRARY) hides the rest).
VERSION  := $(shell sed -n 's/^.define HCACHE_VERSION "\(.*\)"/\1/p' include/hcache.h)
SONAME   := libhcache.so.$(firstword $(subst ., ,$(VERSION)))
PUBLIC   := $(patsubst %.c,$(B)/%.o,$(SERVICE))
LIB_PKGS := $(filter-out libmicrohttpd libcurl libedit,$(PKGS))
LIB_LIBS := -lxxhash -lm -pthread

$(B)/libhcache.so: $(B)/libhcache.a
	@echo "  LINK $@"
	@$(CC) -shared $(LDFLAGS) -Wl,-soname,$(SONAME) -Wl,-z,defs -Wl,--as-needed -o $@ $(PUBLIC) $(B)/libhcache.a $(LDLIBS)

$(B)/static/libhcache.a: $(B)/libhcache.a
	@echo "  LINK $@"
	@mkdir -p $(@D)
	@rm -f $@
	@ld -r -o $(@D)/hcache.o $(PUBLIC) $(B)/libhcache.a
	@objcopy --localize-hidden $(@D)/hcache.o
	@$(AR) rcs $@ $(@D)/hcache.o

libs: $(B)/libhcache.so $(B)/static/libhcache.a

PREFIX  ?= /usr/local
DESTDIR ?=
INSTALL  = PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' PKGS='$(LIB_PKGS)' LIBS='$(LIB_LIBS)' tools/install.sh

install: setup
	@$(MAKE) --no-print-directory $(JOBS) all libs
	@$(INSTALL) install $(B)

# For packagers and tests: installs what is built, without building.
install-built:
	@$(INSTALL) install $(B)

# A Debian package of what is built (tools/deb.sh --check tries it in a bare system).
deb:
	@$(MAKE) --no-print-directory $(JOBS) all libs
	@tools/deb.sh

uninstall:
	@$(INSTALL) uninstall $(B)

# --- the two commands of the README: each sets the machine up by itself -------------------------

setup:
	@tools/setup.sh

demo: setup # MODEL=F.gguf: with another model
	@$(MAKE) --no-print-directory $(JOBS) all
	@$(if $(MODEL),DEMO_MODEL='$(MODEL)') tools/demo.sh

demo-real: setup # with SmolLM2, which is fetched once (98 MB)
	@tools/setup.sh --real-model
	@$(MAKE) --no-print-directory $(JOBS) all
	@DEMO_MODEL="$${XDG_CACHE_HOME:-$$HOME/.cache}/hcache/SmolLM2-135M-Instruct.Q4_1.gguf" tools/demo.sh

demo-cluster: setup # three servers, Redis and HAProxy on loopback
	@tools/setup.sh --cluster
	@$(MAKE) --no-print-directory $(JOBS) all
	@python3 tools/demo_cluster.py

# A whole run also uses the browser and the real model, and continues without them.
test: setup
	@$(if $(TESTS),,tools/setup.sh --test || echo 'make test: goes on; tests that need what is missing are skipped')
	@tools/run_tests.sh --build $(VARIANT)

# --- development --------------------------------------------------------------------------------

check:
	@tools/tidy.sh
	@$(MAKE) --no-print-directory VARIANT=asan test

# Collects what tools/gpu_check.sh needs on a machine with a GPU and little software.
gpu-bundle:
	@$(MAKE) --no-print-directory $(JOBS) CUDA=1 build/release/hcache build/release/hcache-cuda.so build/release/tests/tensor/test_cuda
	@tools/gpu_bundle.sh build/gpu build/release/hcache build/release/hcache-cuda.so build/release/tests/tensor/test_cuda

$(B)/fuzz: tests/fuzz/libfuzzer/main.c $(B)/tests/fuzz/targets.o $(B)/libhcache.a
	@echo "  LINK $@"
	@$(CC) $(ALL_CFLAGS) -fsanitize=fuzzer -o $@ $^ $(LDLIBS)

# Runs each target for FUZZ_SECONDS (FUZZ: a pattern of their names).
FUZZ_SECONDS ?= 20
fuzz:
	@$(MAKE) --no-print-directory $(JOBS) VARIANT=fuzz CC=clang build/fuzz/fuzz
	@tools/fuzz.sh $(FUZZ_SECONDS) '$(FUZZ)'

# Loads damaged models and tokenizers under the sanitizers, for half an hour (DAMAGE: options of
# tools/damage.py).
damage:
	@$(MAKE) --no-print-directory $(JOBS) VARIANT=asan build/asan/hcache
	@tools/damage.py build/asan $(DAMAGE)

# A part of the asan run, in minutes instead of an hour: the code that reads bytes from outside,
# without the kernels. SQLite over the simulated disk (io/test_vfs), each moment of an erasure
# (store/test_erase) and the limits of templates (jinja/test_bounds) are left to `make check`: they
# would take as long as all the others.
SMOKE := base bpe checkpoint io jinja seal redis text model store remote api
SMOKE_TESTS := ^(base|remote|seal)/|^jinja/test_[^b]|^io/test_[^v]|^bpe/test_tokenizer_json$$|^text/test_gguf_tokenizer$$|^checkpoint/|^api/test_(answers|conversations|items|provenance)$$|^store/test_(store|keep|open|reader|parcel)$$
SMOKE_BIN = $(shell cd tests && printf '%s\n' */test_*.c | sed 's/\.c$$//' | grep -E '$(SMOKE_TESTS)' | sed 's,^,build/smoke/tests/,')
asan-smoke:
	@$(MAKE) --no-print-directory $(JOBS) VARIANT=asan B=build/smoke FOLDERS='$(SMOKE)' $(SMOKE_BIN)
	@TESTS='$(SMOKE_TESTS)' tools/run_tests.sh build/smoke

tsan:
	@$(MAKE) --no-print-directory VARIANT=tsan test

coverage:
	@$(MAKE) --no-print-directory $(JOBS) VARIANT=cov tests
	@tools/coverage.sh build/cov

cluster: all # MINUTES=1 SEED=2 REDIS=tls
	@HCACHE_BUILD=$(B) python3 tools/cluster_campaign.py --minutes $(or $(MINUTES),10) --seed $(or $(SEED),1) --redis $(or $(REDIS),plain)

# Kills a server in the middle of a turn a hundred times (the test suite does it a dozen times).
kill-turns: all
	@KILL_CYCLES=100 KILL_SEED=$$(date +%s) HCACHE_BUILD=$(B) python3 tests/e2e/test_stateful.py kill

CRASH_TESTS := $(addprefix $(B)/tests/store/test_,campaign crash damage bits parts) \
               $(TURNS)

crash: $(B)/hcache $(CRASH_TESTS)
	@tools/crash.sh $(B) short

crash-long: $(B)/hcache $(CRASH_TESTS)
	@tools/crash.sh $(B) long

# Checks with 100,000 random histories that the simulated cache and a store evict the same chunks.
placement-check: $(B)/tests/store/test_victims
	HCACHE_TEST_HISTORIES=100000 $(B)/tests/store/test_victims

# Prints how much of a chain is restored, at full size, and how long planning takes
# (tests/restore/test_plan_cut.c); then compares more plans with every alternative than make test.
plan-check: $(addprefix $(B)/tests/restore/test_plan_,cut exact)
	@$< check
	@HCACHE_PLANS=5 $(B)/tests/restore/test_plan_exact

# Makes a page with the papers' figures that need no GPU.  ONLY=fig3,tab1 selects some of them.
# MODEL=M and TEXT=F give those of AttentionStore's section 4.3.7 a model and a text.  SHORTEN=N
# gives the served loads one Nth of their time.
papers: all
	@python3 bench/papers.py --program $(B)/hcache $(if $(ONLY),--only $(ONLY)) \
	    $(if $(SHORTEN),--shorten $(SHORTEN)) $(if $(MODEL),--model $(MODEL)) $(if $(TEXT),--text $(TEXT))

# Draws COUNT one-line mutants of FILES (files or directories) with SEED and lists those that the
# nearest tests miss.  PER_FOLDER=N draws N from each directory of src/ instead.  WIDE=S runs
# further tests on the survivors for S seconds.
FILES ?= $(if $(PER_FOLDER),,src/restore)
COUNT ?= 20
SEED  ?= 1
mutants:
	@tools/mutants.py --seed $(SEED) --count $(COUNT) $(PER_FOLDER:%=--per-folder %) $(WIDE:%=--wide %) $(FILES)

# Builds and runs the nearest tests of one source: make near FILE=src/store/lookup.c
near:
	@near=$$(tools/mutants.py --nearest $(FILE) | sed 's,tests/,,g; s,\.c,,g') && [ -n "$$near" ] && \
	    $(MAKE) --no-print-directory $(JOBS) $$(printf '$(B)/tests/%s ' $$near) && \
	    TESTS="^($$(echo $$near | tr ' ' '|'))$$" tools/run_tests.sh $(B)

# Counts the files that one chat turn with a restore runs through (docs/ARCHITECTURE.md); needs
# valgrind.
walk: $(B)/hcache
	@tools/walk.py --hcache $(B)/hcache

tidy:
	@tools/tidy.sh

format:
	@clang-format -i $$(git ls-files '*.c' '*.h')

options: $(B)/hcache
	@tools/options.sh $(B)/hcache

clean:
	rm -rf build

help:
	@echo 'make            build build/hcache'
	@echo 'make demo       set up, build, and show the main feature (half a minute after the build)'
	@echo 'make demo-real  the same with a real model of 135M parameters, downloaded once (98 MB)'
	@echo 'make demo-cluster three servers share saved state behind a balancer; one is killed'
	@echo 'make test       set up, build, and run every test; TESTS=REGEX runs some of them'
	@echo 'make tests      build the tests without running them'
	@echo 'make check      tidy, and every test under the address and undefined sanitizers'
	@echo 'make asan-smoke parsers, store and I/O under the address sanitizer: minutes'
	@echo 'make tsan       every test under the thread sanitizer'
	@echo 'make coverage   branch coverage of src/store and src/io: a table; less than 90 % is a failure'
	@echo 'make cluster    servers that share a Redis are killed at random for ten minutes (docs/CLUSTER.md)'
	@echo 'make kill-turns a server is killed in mid-turn, 100 times (docs/STATEFUL.md)'
	@echo 'make crash      tests crashes, faults, damage and interleavings: one table, 6 minutes'
	@echo 'make crash-long the same for hours'
	@echo 'make placement-check compares simulator and store on 100,000 random histories: 3 minutes'
	@echo 'make plan-check compares plans for 300 ranges of 80 layers with full searches: 2 minutes'
	@echo 'make papers     a page with the papers'"'"' figures that need no GPU: hours (ONLY=fig3,tab1: some)'
	@echo 'make mutants    draw COUNT one-line mutants of FILES with SEED, list those that tests miss'
	@echo 'make near       build and run the nearest tests of one source: FILE=src/store/lookup.c'
	@echo 'make walk       list the files that one chat turn with a restore runs through (valgrind)'
	@echo 'make gpu-bundle programs and libraries for a machine with a GPU (tools/gpu_check.sh)'
	@echo 'make fuzz       try new inputs on every parser, FUZZ_SECONDS each (FUZZ=PATTERN: some)'
	@echo 'make damage     load 2,000 damaged models and tokenizers under the sanitizers: half an hour'
	@echo 'make tidy       layering, third-party headers, format, warnings on gcc and clang'
	@echo 'make format     clang-format over the tree'
	@echo 'make options    every option of every command, as Markdown'
	@echo 'make setup      install missing distribution packages (tools/setup.sh --test, --dev: more)'
	@echo 'make install    build, and install program, libraries, man pages (PREFIX=/usr/local DESTDIR=)'
	@echo 'make deb        a Debian package, with its service: build/deb/hcache_VERSION_ARCH.deb'
	@echo 'make uninstall  remove the installed files (with the same PREFIX and DESTDIR)'
	@echo 'make clean      remove build/'
	@echo 'CUDA=0          do not build hcache-cuda.so although nvcc exists'
	@echo 'CUDA_ARCHS=L    GPU architectures to make machine code for (80 89 90); later ones compile PTX'
	@echo 'VARIANT=V       with the targets above; V: $(VARIANTS)'
	@echo 'CC=clang CFLAGS=-Werror and the like work as usual; changed flags rebuild'

.PHONY: all libs install install-built deb uninstall tests setup demo demo-real demo-cluster test check fuzz damage gpu-bundle asan-smoke tsan coverage cluster kill-turns crash crash-long placement-check plan-check papers mutants near walk tidy format options clean help FORCE
.SECONDARY:

-include $(OBJ:.o=.d) $(CUDA_OBJ:.o=.d) $(APP_OBJ:.o=.d) $(SIM_OBJ:.o=.d) $(TEST_BIN:=.d) $(TESTLIB_OBJ:.o=.d) $(EMU_OBJ:.o=.d)
