#include "apps/sglang_flags.h"

#include <algorithm>
#include <cctype>
#include <set>

namespace espalier::apps {
namespace {

using Rule = SglangFlag::Rule;

// Flags that share a rule and a reason. `names` are separated by white space.
struct Group {
  Rule rule;
  bool takes_value;
  std::string_view accepted;
  std::string_view reason;
  std::string_view names;
};

constexpr bool kSwitch = false, kValue = true;

constexpr Group kGroups[] = {
    // What Espalier decides itself.
    {Rule::kNoEffect, kValue, "", "kernels are chosen for the device by measurement",
     "attention-backend decode-attention-backend prefill-attention-backend sampling-backend "
     "bf16-gemm-backend fp4-gemm-backend fp8-gemm-backend "
     "moe-runner-backend mamba-backend linear-attn-backend "
     "linear-attn-decode-backend linear-attn-prefill-backend linear-attn-verify-backend "
     "dsa-decode-backend dsa-prefill-backend dsa-paged-mqa-logits-backend dsa-topk-backend "
     "dsa-triton-union dsv4-attn-backend dsv4-prefill-backend mm-attention-backend "
     "triton-attention-num-kv-splits triton-attention-split-tile-size model-impl "
     "flashinfer-autotune-skip-ops flashinfer-mxfp4-moe-precision boundary-reduction "
     "qsa-indexer-dtype c128-page-size prefill-kv-cache-dequant-dtype mamba-ssm-dtype "
     "monokernel-backend"},
    {Rule::kNoEffect, kSwitch, "", "kernels are chosen and fused for the device by measurement",
     "disable-flashinfer-autotune flashinfer-mla-disable-ragged triton-attention-reduce-in-fp32 "
     "disable-chunked-prefix-cache disable-shared-experts-fusion enforce-shared-experts-fusion "
     "enable-fused-qk-norm-rope enable-fused-moe-sum-all-reduce enable-dsa-fused-indexer "
     "enable-lean-attention enable-nvidia-megakernel enable-amd-monokernel "
     "enable-linear-replayssm enable-scattered-sconv enable-tf32-matmul "
     "enable-deepseek-v4-fp4-indexer enable-w4a4-mxfp4-megamoe enable-page-major-kv-layout "
     "enable-unified-memory enable-mamba-cache-stochastic-rounding enable-int8-mamba-checkpoint"},
    {Rule::kNoEffect, kSwitch, "", "logits are computed in float32 always", "enable-fp32-lm-head"},
    {Rule::kNoEffect, kSwitch, "", "prompts and decode share a step always", "enable-mixed-chunk"},
    {Rule::kNoEffect, kSwitch, "",
     "the forward pass is compiled ahead of time; nothing is compiled at start",
     "enable-torch-compile enable-torch-compile-debug-mode"},
    {Rule::kNoEffect, kValue, "", "graphs are captured for the batch sizes that occur",
     "cuda-graph-bs-decode cuda-graph-bs-prefill cuda-graph-bs cuda-graph-max-bs "
     "cuda-graph-max-bs-decode cuda-graph-max-bs-prefill cuda-graph-backend-decode "
     "cuda-graph-backend-prefill cuda-graph-config cuda-graph-max-seq-len-prefill "
     "cuda-graph-prefill-max-context context-bucket torch-compile-max-bs"},
    {Rule::kNoEffect, kSwitch, "", "prefill runs without graphs, and decode graphs are not padded",
     "disable-prefill-cuda-graph disable-cuda-graph-padding enable-cudagraph-gc "
     "enable-profile-cuda-graph debug-cuda-graph"},
    {Rule::kNoEffect, kValue, "",
     "the scheduler overlaps with the device and needs no such setting",
     "num-continuous-decode-steps scheduler-recv-interval prefill-decode-interval "
     "prefill-decode-interval-min-bs min-free-slots-delay prefill-max-requests "
     "num-reserved-decode-tokens tbo-token-distribution-threshold "
     "prefill-delayer-forward-passes-buckets prefill-delayer-max-delay-ms "
     "prefill-delayer-max-delay-passes prefill-delayer-queue-min-ratio "
     "prefill-delayer-token-usage-low-watermark prefill-delayer-wait-seconds-buckets"},
    {Rule::kNoEffect, kSwitch, "",
     "the scheduler overlaps with the device and needs no such setting",
     "enable-two-batch-overlap enable-single-batch-overlap enable-prefill-delayer "
     "enable-dynamic-chunking"},
    {Rule::kNoEffect, kSwitch, "", "an idle server uses no processor always", "sleep-on-idle"},
    {Rule::kNoEffect, kSwitch, "", "the server is ready without a warm-up", "skip-server-warmup"},
    {Rule::kNoEffect, kValue, "", "the server is ready without a warm-up", "warmups"},
    {Rule::kNoEffect, kSwitch, "", "code that lies beside a checkpoint is never run",
     "trust-remote-code"},
    {Rule::kNoEffect, kValue, "",
     "configuration and tokenizer files are recognised by their contents",
     "tokenizer-mode tokenizer-backend model-config-parser"},
    {Rule::kNoEffect, kValue, "", "one thread turns tokens into text for all requests",
     "detokenizer-worker-num batch-notify-size"},
    {Rule::kNoEffect, kSwitch, "",
     "threads tokenize requests side by side (--tokenizer-worker-num)",
     "enable-dynamic-batch-tokenizer enable-tokenizer-batch-encode disable-tokenizer-batch-decode"},
    {Rule::kNoEffect, kValue, "", "threads tokenize requests side by side (--tokenizer-worker-num)",
     "dynamic-batch-tokenizer-batch-size dynamic-batch-tokenizer-batch-timeout"},
    {Rule::kNoEffect, kSwitch, "", "weights are read by several threads from mapped files",
     "weight-loader-disable-mmap weight-loader-prefetch-checkpoints "
     "weight-loader-drop-cache-after-load"},
    {Rule::kNoEffect, kValue, "", "weights are read by several threads from mapped files",
     "weight-loader-prefetch-num-threads startup-weight-load-mode"},
    {Rule::kNoEffect, kSwitch, "", "grammars are compiled here and kept in memory",
     "disable-outlines-disk-cache"},
    {Rule::kNoEffect, kValue, "", "log lines have one form; --log-level says which are written",
     "log-level-http log-requests-level log-requests-format decode-log-interval "
     "uvicorn-access-log-exclude-prefixes"},
    {Rule::kNoEffect, kSwitch, "", "timings are in /metrics and in meta_info (--enable-metrics)",
     "show-time-cost enable-request-time-stats-logging enable-metrics-for-all-schedulers "
     "enable-mfu-metrics enable-forward-pass-metrics enable-layerwise-nvtx-marker"},
    {Rule::kNoEffect, kValue, "", "/metrics has fixed labels and buckets",
     "bucket-e2e-request-latency bucket-inter-token-latency bucket-time-to-first-token "
     "generation-tokens-buckets prompt-tokens-buckets tokenizer-metrics-allowed-custom-labels "
     "tokenizer-metrics-custom-labels-header load-snapshot-publish-interval "
     "forward-pass-metrics-ipc-name forward-pass-metrics-worker-id "
     "expert-balancedness-report-mode"},
    {Rule::kNoEffect, kValue, "", "the process has no interpreter whose memory must be collected",
     "gc-threshold gc-warning-threshold-secs"},
    {Rule::kNoEffect, kValue, "", "threads are placed by the operating system and --num-threads",
     "numa-node"},
    {Rule::kNoEffect, kSwitch, "", "one process serves all connections",
     "enable-http-worker-reuseport use-ray"},
    {Rule::kNoEffect, kSwitch, "", "requests with a priority get 400 while priorities are off",
     "abort-on-priority-when-disabled"},
    {Rule::kNoEffect, kSwitch, "", "tokens are returned as requests ask for them",
     "return-input-ids return-output-ids stream-response-default-include-usage"},
    {Rule::kNoEffect, kSwitch, "", "sessions stream and share cached prefixes always",
     "enable-streaming-session enable-session-radix-cache"},
    // What matters only with several devices.
    {Rule::kNoEffect, kSwitch, "",
     "devices of one process communicate in one way, which has no settings",
     "enable-p2p-check enable-nccl-nvls enable-mscclpp enable-symm-mem "
     "enable-torch-symm-mem pre-warm-nccl enable-flashinfer-allreduce-fusion "
     "enforce-disable-flashinfer-allreduce-fusion enable-aiter-allreduce-fusion "
     "disable-aiter-allreduce-fusion-in-decode disable-aiter-allreduce-fusion-in-prefill "
     "disable-attn-tp-gather enable-attn-tp-input-scattered enable-quant-communications "
     "enable-dense-mlp-attn-tp enable-shared-experts-attn-tp enable-cp-decode-attn-tp "
     "enable-dp-lm-head enable-dp-attention-local-control-broadcast enable-layernorm-sp "
     "enable-megamoe-for-layernorm-sp enable-tp-lm-head-all-to-all enable-waterfill "
     "disable-flashinfer-cutlass-moe-fp4-allgather dcp-replicate-q-proj "
     "enable-dsa-cache-layer-split"},
    {Rule::kNoEffect, kValue, "",
     "devices of one process communicate in one way, which has no settings",
     "nccl-port nccl-init-addr gpu-id-step "
     "pp-max-micro-batch-size pp-async-batch-depth cp-strategy dcp-comm-backend "
     "flashinfer-allreduce-fusion-backend moe-a2a-backend deepep-mode deepep-v2-mode deepep-config "
     "deepep-dispatcher-output-dtype flashinfer-a2a-dispatch-type fuseep-mode mooncake-ib-device "
     "ep-dispatch-algorithm eplb-algorithm "
     "expert-distribution-recorder-buffer-size "
     "elastic-ep-scale-timeout elastic-ep-join-rank-offset"},
    {Rule::kOnlyValue, kValue, "1",
     "--tp-size, --pp-size, --ep-size and --dp-size divide work among devices; leave it out",
     "dcp-size "
     "decode-context-parallel-size attn-cp-size attention-context-parallel-size attn-dp-size "
     "attention-data-parallel-size moe-dp-size moe-data-parallel-size moe-dense-tp-size "
     "shared-experts-tp-size dwdp-size max-ep-size elastic-ep-initial-size"},
    {Rule::kOnlyValue, kValue, "0|trivial|none", "experts stay where they are; leave it out",
     "elastic-ep-backend"},
    {Rule::kRefused, kSwitch, "",
     "--tp-size, --pp-size, --ep-size and --dp-size divide work among devices; leave it out",
     "enable-prefill-cp enable-elastic-expert-backup "
     "enable-kv-cache-sharding"},
    {Rule::kRefused, kValue, "",
     "--tp-size, --pp-size, --ep-size and --dp-size divide work among devices; leave it out",
     "elastic-ep-join-mode"},
    // Settings of features that are off unless another flag, which is refused, turns them on.
    {Rule::kNoEffect, kValue, "",
     "pages lie in one layout, and a load that takes longer than 1 s and 250 ms for each 1,024 "
     "tokens is computed instead",
     "hicache-host-memory-fraction hicache-host-memory-mode hicache-io-backend hicache-mem-layout "
     "hicache-storage-prefetch-retry-max-attempts hicache-storage-prefetch-retry-poll-interval"},
    {Rule::kNoEffect, kValue, "", "it matters only with what another flag, refused here, turns on",
     "hisparse-config "
     "hierarchical-sparse-attention-extra-config lmcache-config-file flexkv-config-file "
     "unified-cache-external-linker-backend unified-cache-external-linker-config "
     "mm-global-cache-backend"},
    {Rule::kRefused, kSwitch, "", "pages beyond the device are kept by --enable-hierarchical-cache",
     "enable-hisparse enable-lmcache enable-flexkv "
     "enable-unified-cache-external-linker enable-linker-mla-dedup"},
    {Rule::kRefused, kValue, "", "pages beyond the device are kept by --enable-hierarchical-cache",
     "radix-cache-backend swa-prefix-tails radix-eviction-policy-config"},
    {Rule::kNoEffect, kValue, "",
     "it matters only with drafters of other kinds, or stored in another way",
     "speculative-accept-threshold-acc speculative-accept-threshold-single "
     "speculative-adaptive-config speculative-attention-mode speculative-dflash-block-size "
     "speculative-domino-candidate-pool-size speculative-draft-attention-backend "
     "speculative-draft-kv-cache-dtype speculative-draft-load-format "
     "speculative-draft-model-quantization "
     "speculative-draft-model-revision speculative-draft-sink-size speculative-draft-window-size "
     "speculative-dsa-topk-backend speculative-dspark-block-size "
     "speculative-dspark-confidence-sts-path speculative-dspark-sps-table-path "
     "speculative-moe-a2a-backend speculative-moe-runner-backend "
     "speculative-ngram-external-corpus-max-tokens "
     "speculative-ngram-external-corpus-path speculative-ngram-external-sam-budget "
     "speculative-ngram-match-type speculative-ngram-max-bfs-breadth "
     "speculative-ngram-max-trie-depth speculative-ngram-min-bfs-breadth "
     "speculative-token-map spec-trace-dir "
     "linear-replayssm-cache-len"},
    {Rule::kNoEffect, kSwitch, "",
     "it matters only with drafters of other kinds, or stored in another way",
     "speculative-adaptive speculative-use-block-verification speculative-use-rejection-sampling "
     "speculative-dspark-align-verify-tokens-to-graph-tier enable-multi-layer-eagle "
     "enable-draft-weights-cpu-backup enable-linear-replayssm-spec "
     "speculative-enable-w4a4-mxfp4-megamoe"},
    {Rule::kRefused, kValue, "",
     "a draft model runs in the server that it drafts for: --speculative-algorithm STANDALONE",
     "decoupled-spec-bind-endpoint decoupled-spec-connect-endpoints "
     "decoupled-spec-rank"},
    {Rule::kRefused, kValue, "", "it is named --speculative-draft-model-path here",
     "speculative-draft-model"},
    {Rule::kOnlyValue, kValue, "1", "draft tokens of a head are a chain, without branches: set 1",
     "speculative-eagle-topk"},
    {Rule::kOnlyValue, kValue, "null",
     "a draft model runs in the server that it drafts for; leave it out", "decoupled-spec-role"},
    {Rule::kNoEffect, kValue, "", "adapters are found by their files, and one kernel serves all",
     "lora-backend lora-drain-wait-threshold lora-target-modules max-lora-chunk-size"},
    {Rule::kNoEffect, kValue, "", "loaded adapters stay in memory until they are unloaded",
     "lora-eviction-policy"},
    {Rule::kNoEffect, kSwitch, "",
     "adapters lie where they are computed, and what does not fit is "
     "always refused",
     "enable-lora-overlap-loading lora-strict-loading lora-use-virtual-experts "
     "experts-shared-outer-loras"},
    {Rule::kRefused, kValue, "", "one adapter for all requests is the merged weights: merge it",
     "uno-lora-path"},
    {Rule::kNoEffect, kValue, "",
     "pages go to the decode server over TCP as they are computed, and it takes what it lacks",
     "disaggregation-decode-allocation-policy "
     "disaggregation-decode-extra-slots disaggregation-decode-host-receive-threshold "
     "disaggregation-decode-polling-interval disaggregation-decode-retraction-backup "
     "disaggregation-ib-device optimistic-prefill-attempts"},
    {Rule::kNoEffect, kValue, "", "pictures are encoded in the process that reads the prompt",
     "sm-group-num pdmux-config-path encoder-bootstrap-port encoder-transfer-backend"},
    {Rule::kNoEffect, kSwitch, "",
     "pages go to the decode server over TCP as they are computed, and it takes what it lacks",
     "disaggregation-decode-enable-offload-kvcache disaggregation-decode-enable-radix-cache "
     "disaggregation-enable-kv-checksum enable-adaptive-dispatch-to-encoder"},
    {Rule::kRefused, kSwitch, "",
     "a server has one role (--disaggregation-mode); start it without this flag",
     "enable-pdmux enable-pd-role-switch encoder-only"},
    {Rule::kRefused, kValue, "",
     "pictures are encoded in the process that reads the prompt; start it without this flag",
     "encoder-urls encoder-register-urls"},
    {Rule::kNoEffect, kValue, "",
     "pictures and sounds are read in this process, and videos are not supported",
     "image-processor-backend limit-mm-data-per-request mm-feature-transport mm-io-worker-num "
     "mm-preprocess-cache-size-mb mm-process-config mm-processor-worker-num "
     "media-url-max-file-size-mb asr-max-buffer-seconds asr-max-concurrent-sessions"},
    {Rule::kNoEffect, kSwitch, "",
     "pictures and sounds are read in this process, and videos are not supported",
     "enable-broadcast-mm-inputs-process enable-mm-global-cache enable-prefix-mm-cache "
     "mm-enable-dp-encoder disable-fast-image-processor enable-precise-embedding-interpolation "
     "trust-mm-content-hashes language-only language-model-only"},
    {Rule::kNoEffect, kSwitch, "", "models that read pictures do so without it",
     "enable-multimodal"},
    {Rule::kNoEffect, kValue, "",
     "recurrent layers are not supported, so nothing is sized for them",
     "mamba-cache-philox-rounds mamba-full-memory-ratio mamba-max-states-per-path "
     "mamba-radix-cache-strategy mamba-track-interval max-mamba-cache-size int8-mamba-ckpt-size"},
    // What Espalier does not have.
    {Rule::kRefused, kValue, "", "verify the files with sha256sum before the start",
     "model-checksum"},
    {Rule::kOnlyValue, kValue, "{}", "checkpoints are read in one way; leave it out",
     "model-loader-extra-config"},
    {Rule::kRefused, kValue, "",
     "weights are read from --model-path; convert the checkpoint to safetensors or GGUF",
     "custom-weight-loader decrypted-config-file decrypted-draft-config-file modelexpress-config "
     "modelopt-quant modelopt-checkpoint-restore-path modelopt-checkpoint-save-path "
     "modelopt-export-path rl-quant-profile quantization-param-path "
     "remote-instance-weight-loader-seed-instance-ip "
     "remote-instance-weight-loader-seed-instance-service-port "
     "remote-instance-weight-loader-send-weights-group-ports weight-cache-socket"},
    {Rule::kRefused, kSwitch, "",
     "weights are read from --model-path; convert the checkpoint to safetensors or GGUF",
     "quantize-and-serve delete-ckpt-after-loading "
     "remote-instance-weight-loader-start-seed-via-transfer-engine "
     "checkpoint-engine-wait-weights-before-ready"},
    {Rule::kNoEffect, kValue, "", "weights are read from --model-path by this process",
     "remote-instance-weight-loader-backend engine-info-bootstrap-port weight-cache-timeout"},
    {Rule::kOnlyValue, kValue, "off", "weights are read from --model-path by this process",
     "weight-cache-mode"},
    {Rule::kNoEffect, kSwitch, "", "/release_memory_occupation needs no flag",
     "enable-memory-saver"},
    {Rule::kOnlyValue, kValue, "0", "all weights lie on the device; take a smaller --quantization",
     "cpu-offload-gb"},
    {Rule::kNoEffect, kValue, "", "it matters only with --cpu-offload-gb",
     "offload-group-size offload-mode offload-num-in-group offload-prefetch-step "
     "ple-offload-backend ple-offload-dir paged-experts-num-resident kt-cpuinfer kt-method "
     "kt-max-deferred-experts-per-token kt-num-gpu-experts kt-threadpool-count"},
    {Rule::kRefused, kSwitch, "", "all weights lie on the device; take a smaller --quantization",
     "ple-offload-embedding enable-paged-experts"},
    {Rule::kRefused, kValue, "", "all weights lie on the device; take a smaller --quantization",
     "kt-weight-path"},
    {Rule::kRefused, kSwitch, "", "code from requests is never run",
     "enable-custom-logit-processor trust-request-chat-template"},
    {Rule::kRefused, kSwitch, "", "answers hold tokens and log-probabilities alone",
     "enable-return-aux-hidden-states enable-return-indexer-topk "
     "enable-return-routed-experts enable-mis"},
    {Rule::kRefused, kValue, "", "answers hold tokens and log-probabilities alone",
     "return-aux-hidden-state-layer-ids return-hidden-states-mode sampling-mask-max-tokens "
     "forward-hooks msprobe-dump-config debug-tensor-dump-input-file debug-tensor-dump-layers "
     "debug-tensor-dump-output-folder crash-dump-folder"},
    {Rule::kRefused, kValue, "", "let requests state their own sampling_params",
     "preferred-sampling-params"},
    {Rule::kRefused, kSwitch, "", "negate the priorities that requests send",
     "schedule-low-priority-values-first"},
    {Rule::kOnlyValue, kValue, "0", "let requests state their own priority",
     "default-priority-value"},
    {Rule::kOnlyValue, kValue, "length", "requests are retracted by the tokens that they lose",
     "retraction-policy"},
    {Rule::kRefused, kSwitch, "", "prompts that are too long get 400; cut them in the client",
     "allow-auto-truncate"},
    {Rule::kRefused, kValue, "", "write the template as Jinja and give it as --chat-template",
     "completion-template hf-chat-template-name default-chat-template-kwargs"},
    {Rule::kRefused, kValue, "", "the field json_whitespace of a request says it",
     "constrained-json-max-whitespace-cnt constrained-json-whitespace-pattern"},
    {Rule::kRefused, kSwitch, "", "a grammar constrains reasoning where a request asks for it",
     "enable-strict-thinking strip-thinking-cache"},
    {Rule::kRefused, kSwitch, "", "send SIGHUP once the files of the certificate are replaced",
     "enable-ssl-refresh"},
    {Rule::kNoEffect, kSwitch, "", "HTTP/1.1 is served, which clients of HTTP/2 fall back to",
     "enable-http2"},
    {Rule::kNoEffect, kValue, "", "HTTP/1.1 is served, which clients of HTTP/2 fall back to",
     "http2-initial-connection-window-size http2-max-concurrent-streams"},
    {Rule::kRefused, kSwitch, "", "HTTP is served; use /generate or the OpenAI routes",
     "grpc-mode smg-grpc-mode"},
    {Rule::kRefused, kValue, "", "HTTP is served; use /generate or the OpenAI routes",
     "grpc-port smg-http-sidecar-port grpc-http-sidecar-port sidecar sidecar-args "
     "gated-launch-port tool-server"},
    {Rule::kNoEffect, kValue, "", "it matters only with gRPC", "grpc-response-timeout-secs"},
    {Rule::kOnlyValue, kValue, "", "let the proxy in front of the server strip the path",
     "fastapi-root-path"},
    {Rule::kRefused, kSwitch, "", "/metrics and --log-requests report each request",
     "export-metrics-to-file enable-watermark enable-response-store"},
    {Rule::kRefused, kValue, "", "/metrics and --log-requests report each request",
     "export-metrics-to-file-dir extra-metric-labels load-publish-endpoint watermark-config"},
    {Rule::kRefused, kValue, "",
     "lines of --log-requests go to the error output: start with 2>FILE to keep them; "
     "--request-log FILE with --request-log-prompts keeps requests for a replay",
     "log-requests-target"},
    {Rule::kNoEffect, kSwitch, "", "--otlp-traces-endpoint alone turns traces on", "enable-trace"},
    {Rule::kNoEffect, kValue, "", "a trace has the phases of a request", "trace-modules"},
    {Rule::kOnlyValue, kValue, "none", "cached keys and values need no checks while serving",
     "kv-canary kv-canary-real-data"},
    {Rule::kNoEffect, kValue, "", "it matters only with --kv-canary", "kv-canary-sweep-interval"},
    {Rule::kNoEffect, kSwitch, "", "embeddings need no more cache than their own step",
     "prefill-only-disable-kv-cache"},
    {Rule::kNoEffect, kSwitch, "", "windows keep what a later prefix needs by themselves",
     "enable-decoder-swa-bounded-replay enable-encoder-swa-bounded-replay"},
    {Rule::kRefused, kValue, "", "models that generate by diffusion are not supported",
     "dllm-algorithm"},
    {Rule::kNoEffect, kValue, "", "it matters only with --dllm-algorithm", "dllm-algorithm-config"},
    {Rule::kNoEffect, kSwitch, "", "it matters only with --dllm-algorithm", "dllm-fdfo"},
    {Rule::kNoEffect, kSwitch, "", "it turns off what is not there",
     "no-dcp-replicate-q-proj no-dllm-fdfo no-enable-decoder-swa-bounded-replay "
     "no-enable-dsa-fused-indexer no-enable-fused-qk-norm-rope no-enable-tf32-matmul "
     "no-enable-tp-lm-head-all-to-all no-experts-shared-outer-loras no-lora-strict-loading "
     "no-mm-enable-dp-encoder no-ple-offload-embedding no-speculative-enable-w4a4-mxfp4-megamoe"},
    {Rule::kRefused, kValue, "", "use --enable-deterministic-inference for equal bits",
     "rl-on-policy-target"},
    {Rule::kNoEffect, kSwitch, "", "it is for Apple's processors", "mlx-enable-sampling"},
};

bool is_space(char c) { return c == ' ' || c == '\n'; }

// Calls `visit(name)` for each name of a group until it returns false.
template <typename Visit>
void each_name(std::string_view names, Visit visit) {
  for (size_t at = 0; at < names.size();) {
    while (at < names.size() && is_space(names[at])) ++at;
    const size_t begin = at;
    while (at < names.size() && !is_space(names[at])) ++at;
    if (at > begin && !visit(names.substr(begin, at - begin))) return;
  }
}

SglangFlag flag_of(const Group& group, std::string_view name) {
  return {.name = name,
          .rule = group.rule,
          .takes_value = group.takes_value,
          .accepted = group.accepted,
          .reason = group.reason};
}

// '_' counts as '-', as it does for settings.
std::string canonical(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

bool accepts(const SglangFlag& flag, std::string_view value) {
  std::string_view left = flag.accepted;
  while (true) {
    const size_t bar = left.find('|');
    if (value == left.substr(0, bar)) return true;
    if (bar == std::string_view::npos) return false;
    left.remove_prefix(bar + 1);
  }
}

// "-1" is a value, "-x" and "--x" are flags.
bool looks_like_flag(std::string_view word) {
  return word.size() > 1 && word[0] == '-' &&
         std::isdigit(static_cast<unsigned char>(word[1])) == 0;
}

// The names that begin with `name`: of settings (an alias gives its setting's name) and of SGLang.
std::vector<std::string> names_that_begin_with(const std::string& name, const SettingTable& table) {
  std::set<std::string> names;
  for (const Setting& row : table.rows()) {
    const bool by_alias = std::ranges::any_of(
        row.aliases, [&](const std::string& alias) { return alias.starts_with(name); });
    if (by_alias || row.name.starts_with(name)) names.insert(row.name);
  }
  for (const SglangFlag& flag : sglang_flags())
    if (flag.name.starts_with(name)) names.emplace(flag.name);
  return {names.begin(), names.end()};
}

// A flag as it stands on the command line: its name, and the value behind '=' if there is one.
struct Word {
  std::string name;
  bool has_value = false;
  std::string value;
  bool completed = false;  // the command line has the beginning of the name alone
};

Word split(const std::string& word) {
  const size_t equals = word.find('=');
  if (equals == std::string::npos) return {.name = canonical(word.substr(2))};
  return {.name = canonical(word.substr(2, equals - 2)),
          .has_value = true,
          .value = word.substr(equals + 1)};
}

Status judge(const SglangFlag& flag, std::string_view value) {
  if (flag.rule == Rule::kRefused)
    return invalid_argument("--{} of SGLang is not supported: {}", flag.name, flag.reason);
  if (flag.rule == Rule::kOnlyValue && !accepts(flag, value))
    return invalid_argument("--{} is '{}', but only '{}' is supported: {}", flag.name, value,
                            flag.accepted, flag.reason);
  return {};
}

std::string spelled(const Word& word) {
  return "--" + word.name + (word.has_value ? "=" + word.value : "");
}

// Launch lines for SGLang may abbreviate a flag to a beginning that no other flag has. A name that
// begins none stays, and is reported where the settings are read.
Status complete(Word& word, const SettingTable& table, std::vector<std::string>& notes) {
  if (word.name.empty() || table.find(word.name) != nullptr ||
      find_sglang_flag(word.name) != nullptr)
    return {};
  const std::vector<std::string> names = names_that_begin_with(word.name, table);
  if (names.empty()) return {};
  if (names.size() > 1)
    return invalid_argument("--{} may be the beginning of --{}: write the whole name", word.name,
                            fmt::join(names, ", --"));
  notes.push_back(fmt::format("--{} is taken for --{}", word.name, names[0]));
  word.name = names[0];
  word.completed = true;
  return {};
}

std::string note_on(const SglangFlag& flag, std::string_view value) {
  if (flag.rule == Rule::kOnlyValue)
    return fmt::format("--{} {} has no effect: nothing else is supported", flag.name, value);
  return fmt::format("--{} has no effect: {}", flag.name, flag.reason);
}

std::string treatment(const SglangFlag& flag) {
  if (flag.rule == Rule::kNoEffect) return "no effect";
  if (flag.rule == Rule::kRefused) return "refused";
  std::string values(flag.accepted);
  std::replace(values.begin(), values.end(), '|', ' ');
  return values.empty() ? "refused unless empty" : fmt::format("only `{}`", values);
}

}  // namespace

const SglangFlag* find_sglang_flag(std::string_view name) {
  static const std::vector<SglangFlag> kFlags = sglang_flags();
  const auto at = std::lower_bound(
      kFlags.begin(), kFlags.end(), name,
      [](const SglangFlag& flag, std::string_view wanted) { return flag.name < wanted; });
  return at != kFlags.end() && at->name == name ? &*at : nullptr;
}

std::vector<SglangFlag> sglang_flags() {
  std::vector<SglangFlag> flags;
  for (const Group& group : kGroups)
    each_name(group.names, [&](std::string_view name) {
      flags.push_back(flag_of(group, name));
      return true;
    });
  std::sort(flags.begin(), flags.end(),
            [](const SglangFlag& a, const SglangFlag& b) { return a.name < b.name; });
  return flags;
}

std::string sglang_flags_markdown() {
  std::string out =
      "# Flags of SGLang\n\n"
      "`espalier serve` starts from launch lines that were written for SGLang 0.5.23. Flags that "
      "are\n"
      "settings of Espalier stand in [flags.md](flags.md); all others of SGLang stand here. A "
      "flag\n"
      "without effect is accepted and noted at the start; a refused one ends the start with the "
      "advice\n"
      "beside it. This table is made from `src/apps/sglang_flags.cc`.\n\n"
      "| flag | treatment | why, or what to do instead |\n|---|---|---|\n";
  for (const SglangFlag& flag : sglang_flags())
    out += fmt::format("| `--{}` | {} | {} |\n", flag.name, treatment(flag), flag.reason);
  return out;
}

Result<SglangArguments> take_sglang_flags(const std::vector<std::string>& args,
                                          const SettingTable& table) {
  SglangArguments out;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--") {
      out.rest.insert(out.rest.end(), args.begin() + static_cast<ptrdiff_t>(i), args.end());
      break;
    }
    if (!args[i].starts_with("--")) {
      out.rest.push_back(args[i]);
      continue;
    }
    Word word = split(args[i]);
    ESP_RETURN_IF_ERROR(complete(word, table, out.notes));
    const SglangFlag* flag =
        table.find(word.name) == nullptr ? find_sglang_flag(word.name) : nullptr;
    if (flag == nullptr) {
      out.rest.push_back(word.completed ? spelled(word) : args[i]);
      continue;
    }
    if (flag->takes_value && !word.has_value) {
      while (i + 1 < args.size() && !looks_like_flag(args[i + 1]))
        word.value += (word.has_value ? " " : "") + args[++i], word.has_value = true;
      if (!word.has_value) return fail(invalid_argument("--{} needs a value", flag->name));
    }
    ESP_RETURN_IF_ERROR(judge(*flag, word.value));
    out.notes.push_back(note_on(*flag, word.value));
  }
  return out;
}

}  // namespace espalier::apps
