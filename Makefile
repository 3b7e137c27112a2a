# hcache - build, test, measure.  `make help` lists the targets.
#
# Everything is built out of tree, in build/<variant>/.  Variants: release (default), debug, asan,
# tsan, cov; `make VARIANT=asan test`.  build/hcache points at the release program.

VARIANT ?= release
B       := build/$(VARIANT)
CC      ?= cc
PKGS    := liburing sqlite3 jansson libpcre2-8 libutf8proc libcrypto

WARN     := -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes \
            -Wmissing-prototypes -Wvla -Werror=implicit -Werror=int-conversion
# -ffp-contract=off: the compiler must not fuse what the kernels leave unfused, or results would
# depend on the compiler.  Fused steps are written as fma.
COMMON   := -std=c11 -D_GNU_SOURCE -Isrc -Iinclude -MMD -MP -g -pthread -ffp-contract=off \
            -fno-math-errno $(WARN)
OPT_release := -O2
OPT_debug   := -O1 -DHC_DEBUG
OPT_asan    := -O1 -DHC_DEBUG -fsanitize=address,undefined -fno-sanitize-recover=undefined \
               -fno-omit-frame-pointer
OPT_tsan    := -O1 -DHC_DEBUG -fsanitize=thread -fno-omit-frame-pointer
OPT_cov     := -O0 -DHC_DEBUG --coverage
CFLAGS   ?=
ALL_CFLAGS = $(COMMON) $(OPT_$(VARIANT)) $(PKG_CFLAGS) $(CFLAGS)
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
LDLIBS   := $(shell pkg-config --libs $(PKGS) 2>/dev/null) -lxxhash -lm -pthread
LDFLAGS  := $(OPT_$(VARIANT)) -pthread

SRC   := $(sort $(wildcard src/*/*.c src/*/*/*.c))
APPS  := $(sort $(wildcard apps/*.c))
BENCH := $(sort $(wildcard bench/*.c))
TESTS := $(sort $(wildcard tests/*/test_*.c))
TESTLIB_SRC := $(sort $(filter-out $(TESTS),$(wildcard tests/*/*.c)))

OBJ      := $(SRC:%.c=$(B)/%.o)
APP_OBJ  := $(APPS:%.c=$(B)/%.o) $(BENCH:%.c=$(B)/%.o)
TEST_BIN := $(TESTS:%.c=$(B)/%)
TESTLIB_OBJ := $(TESTLIB_SRC:%.c=$(B)/%.o)

all: $(B)/hcache build/hcache

build/hcache: $(if $(filter release,$(VARIANT)),$(B)/hcache)
	@mkdir -p build
	@ln -sfn release/hcache build/hcache

$(B)/libhcache.a: $(OBJ)
	@rm -f $@
	@$(AR) rcs $@ $^

$(B)/hcache: $(APP_OBJ) $(B)/libhcache.a
	@echo "  LINK $@"
	@$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

# Kernels for one instruction set live in files named after it and are chosen at run time.
$(B)/%_avx2.o: ARCH_FLAGS := -mavx2 -mfma -mf16c -O3
$(B)/%_avx512.o: ARCH_FLAGS := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -O3

$(B)/%.o: %.c
	@mkdir -p $(@D)
	@echo "  CC   $<"
	@$(CC) $(ALL_CFLAGS) $(ARCH_FLAGS) -c -o $@ $<

$(B)/tests/%: $(B)/tests/%.o $(TESTLIB_OBJ) $(B)/libhcache.a
	@echo "  LINK $@"
	@$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS) -lcmocka

tests: $(TEST_BIN)

setup:
	@tools/setup.sh

# The two commands of the README: each sets the machine up by itself.
demo: setup
	@$(MAKE) --no-print-directory -j2 all
	@tools/demo.sh

test: setup
	@$(MAKE) --no-print-directory -j2 all tests
	@tools/run_tests.sh $(B)

tidy:
	@tools/tidy.sh

format:
	@clang-format -i $$(git ls-files '*.c' '*.h')

clean:
	rm -rf build

help:
	@echo 'make            build build/hcache'
	@echo 'make demo       set up, build, and show the main job'
	@echo 'make test       set up, build, and run every test (TESTS=pattern runs some)'
	@echo 'make check      test under sanitizers, and tidy'
	@echo 'make tidy       layering, third-party headers, format, warnings on gcc and clang'
	@echo 'make format     clang-format over the tree'
	@echo 'make VARIANT=V  V: release debug asan tsan cov'

check:
	@$(MAKE) --no-print-directory tidy
	@$(MAKE) --no-print-directory VARIANT=asan test

.PHONY: all tests setup demo test tidy format clean help check
.SECONDARY:

-include $(OBJ:.o=.d) $(APP_OBJ:.o=.d) $(TEST_BIN:=.d) $(TESTLIB_OBJ:.o=.d)
