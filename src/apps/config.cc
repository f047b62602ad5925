#include "apps/config.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cstdlib>
#include <limits>

#include "apps/kv_events_setting.h"
#include "apps/rank_settings.h"
#include "apps/served_models_file.h"
#include "base/log.h"
#include "engine/replicas/replica_choice.h"
#include "engine/startup/device.h"
#include "server/storage_config.h"
#include "text/parse/reasoning_parser.h"
#include "text/parse/tool_call_parser.h"

namespace espalier::apps {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();

// 0 and "" are how a config says "chosen from the model and the system"; the help says it in
// words.
void shown_default(Setting& row, std::string words) { row.default_text = std::move(words); }

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

// Names of a checkpoint's own format, which is recognised without them.
bool is_stored_format(std::string_view name) {
  constexpr std::string_view kNames[] = {"awq",      "gptq", "compressed-tensors", "fbgemm_fp8",
                                         "modelopt", "gguf", "modelopt_fp8"};
  return std::ranges::find(kNames, name) != std::end(kNames);
}
bool is_rounded_type(std::string_view dtype) {
  return dtype == "q8_0" || dtype == "q4_k" || dtype == "fp8" || dtype == "int4" ||
         dtype == "nvfp4" || dtype == "mxfp4";
}

void add_path_rows(SettingTable& table, EngineConfig& engine, HubSettings& hub) {
  Setting& model =
      table.path("model-path", engine.model.model_path,
                 "folder with config.json, *.safetensors and tokenizer.json, a .gguf file, or "
                 "org/name of a Hugging Face hub (org/name:Q4_K_M for one of its GGUF files); "
                 "seeing is the model that ships for questions about pictures");
  model.aliases = {"model"};
  shown_default(model, "the model that ships");
  shown_default(table.text("revision", hub.revision, "NAME",
                           "branch, tag or commit of a model that a hub has"),
                "main");
  shown_default(table.path("download-dir", hub.download_dir,
                           "the cache that models of a hub are fetched into"),
                "HF_HUB_CACHE");
  shown_default(
      table.path("tokenizer-path", engine.model.tokenizer_path,
                 "folder, tokenizer.json, .model, .tiktoken or .gguf of another tokenizer"),
      "model-path");
}

void add_model_rows(SettingTable& table, EngineConfig& engine, HubSettings& hub) {
  table.group("Model");
  add_path_rows(table, engine, hub);
  table.custom(
      "load-format", "auto|dummy",
      "dummy draws weights from random-seed for any config.json; safetensors and gguf mean "
      "auto, which recognises the files",
      "auto", [&engine](std::string_view value) -> Status {
        if (value != "auto" && value != "dummy" && value != "safetensors" && value != "gguf")
          return invalid_argument("'{}' is not one of auto, dummy, safetensors, gguf", value);
        engine.model.load_format = value == "dummy" ? LoadFormat::kDummy : LoadFormat::kAuto;
        return {};
      });
  // Both name what the weights become, so one that the other would replace is an error.
  Setting& dtype =
      table.choice("dtype", engine.model.dtype, {"auto", "float32", "bfloat16"},
                   "type of the weights; auto takes the checkpoint's; half and float16 "
                   "mean bfloat16, float means float32");
  dtype.set = [&engine, set = dtype.set](std::string_view value) -> Status {
    if (value == "float") value = "float32";
    if (value == "half" || value == "float16") value = "bfloat16";
    if (is_rounded_type(engine.model.dtype) && value != "auto")
      return invalid_argument("'{}' contradicts --quantization {}: leave one out", value,
                              engine.model.dtype);
    return is_rounded_type(engine.model.dtype) ? Status() : set(value);
  };
  table.custom(
      "quantization", "q8_0|q4_k|fp8|int4|nvfp4|mxfp4",
      "q8_0 and q4_k, on the CPU: round weights to about 8 or 4 bits; blocks of a GGUF "
      "stay as they are. On a GPU, of the layers' matrices: fp8, in e4m3, activations rounded "
      "to it on their way into them; int4, in 4 bits with a scale for 128 neighbours; "
      "nvfp4, in NVFP4 with one for 16; mxfp4, of experts alone, in MXFP4. Takes the place of "
      "dtype. A checkpoint's own format "
      "(awq, gptq, compressed-tensors, fbgemm_fp8, modelopt, gguf, gpt-oss's mxfp4) needs no name",
      "none", [&engine](std::string_view value) -> Status {
        if (is_stored_format(value)) return {};
        if (value == "w8a8_fp8") value = "fp8";
        if (!is_rounded_type(value))
          return invalid_argument("'{}' is not one of q8_0, q4_k, fp8, int4, nvfp4, mxfp4", value);
        if (engine.model.dtype != "auto" && !is_rounded_type(engine.model.dtype))
          return invalid_argument("'{}' contradicts --dtype {}: leave one out", value,
                                  engine.model.dtype);
        engine.model.dtype = value;
        return {};
      });
  Setting& kv_dtype = table.choice(
      "kv-cache-dtype", engine.cache.kv_cache_dtype, {"auto", "float32", "bfloat16", "fp8_e4m3"},
      "type of cached keys and values; auto takes bfloat16, float32 for float32 weights; fp8_e4m3, "
      "on a GPU: twice the tokens in the same memory, rounded to 3 bits of fraction");
  kv_dtype.set = [set = kv_dtype.set](std::string_view value) {
    if (value == "fp8") value = "fp8_e4m3";
    return set(value == "bf16" ? "bfloat16" : value);
  };
  shown_default(table.integer("context-length", engine.model.context_length, 0, kInt32Max,
                              "tokens that prompt and output share"),
                "the model's");
  table.toggle(
      "is-embedding", engine.model.is_embedding,
      "the model makes embeddings (last token, length 1) though its architecture generates");
  table.text("json-model-override-args", engine.model.json_model_override_args, "JSON",
             "object whose fields replace those of the model's config.json, nested ones too");
  table.toggle("skip-tokenizer-init", engine.model.skip_tokenizer_init,
               "load no tokenizer: requests bring input_ids and get output_ids");
  table.choice("sampling-defaults", engine.sampling.sampling_defaults, {"model", "openai"},
               "model: generation_config.json (a GGUF's general.sampling keys) gives the defaults "
               "of a request; openai: it does not");
}

void add_memory_rows(SettingTable& table, EngineConfig& engine) {
  table.group("Memory and scheduling");
  shown_default(table.number("mem-fraction-static", engine.cache.mem_fraction_static, 0, 1,
                             "part of the memory free at start that weights and KV cache may take"),
                "chosen");
  shown_default(table.integer("max-total-tokens", engine.cache.max_total_tokens, 0, kInt32Max,
                              "tokens that the KV cache holds"),
                "chosen");
  shown_default(table.integer("max-running-requests", engine.schedule.max_running_requests, 0,
                              65536, "requests that run at once"),
                "chosen");
  shown_default(
      table.integer(
          "max-queued-requests", engine.schedule.max_queued_requests, 0, kInt32Max,
          "requests that wait; beyond, new ones get 503, or with priorities or fair shares replace "
          "a waiting one"),
      "chosen");
  shown_default(table.integer("chunked-prefill-size", engine.schedule.chunked_prefill_size, -1,
                              kInt32Max, "prompt tokens that one step takes; -1: no limit"),
                "chosen");
  shown_default(
      table.integer("max-prefill-tokens", engine.schedule.max_prefill_tokens, 0, kInt32Max,
                    "prompt tokens of the requests that are prefilled together"),
      "chosen");
  table.integer("page-size", engine.cache.page_size, 1, 4096, "tokens in a page of the KV cache");
}

void add_scheduling_rows(SettingTable& table, EngineConfig& engine) {
  Setting& policy = table.choice(
      "schedule-policy", engine.schedule.schedule_policy,
      {"lpm", "dfs-weight", "fcfs", "lof", "random", "priority"},
      "who goes first: lpm, the longest cached prefix; dfs-weight, depth first through the waiting "
      "prompts' tree; fcfs, the first that came; lof, the longest output to come; random; "
      "priority, "
      "the highest");
  policy.set = [known = policy.set](std::string_view value) -> Status {
    if (value == "routing-key")
      return invalid_argument(
          "'routing-key' of SGLang is not supported: take lpm, which prefers requests whose prefix "
          "is cached, as the prefixes of running requests are, with no key in a header");
    return known(value);
  };
  table.choice("fair-share", engine.schedule.fair_share, {"none", "tenant", "priority"},
               "between whom service is shared fairly: tenants (keys of --api-keys-file, else "
               "extra_key) or priorities");
  table
      .integer("schedule-bypass-bound", engine.schedule.schedule_bypass_bound, 0, kInt32Max,
               "later requests that may be admitted before a waiting one; then it goes first")
      .aliases = {"schedule-max-overtakes"};
  table.integer("priority-scheduling-preemption-threshold",
                engine.schedule.priority_scheduling_preemption_threshold, 1, kInt32Max,
                "with --schedule-policy priority: running requests of a priority so much lower "
                "make way");
  table.custom("enable-priority-scheduling", "", "the same as --schedule-policy priority", "",
               [&engine](std::string_view value) -> Status {
                 if (value != "true" && value != "false")
                   return invalid_argument("'{}' is not one of true, false", value);
                 if (value == "true") engine.schedule.schedule_policy = "priority";
                 return {};
               });
  table.toggle("disable-priority-preemption", engine.schedule.disable_priority_preemption,
               "what runs never makes way");
  shown_default(
      table.number("max-inter-token-latency-ms", engine.schedule.max_inter_token_latency_ms, 0, 1e6,
                   "cut prompts so that steps with running requests take about so long at most"),
      "no bound");
  shown_default(table.number("mixed-step-ratio", engine.schedule.mixed_step_ratio, 0, 1e6,
                             "cut prompts so that steps with running requests take at most about "
                             "so many times as long as without prompts; 0: no bound"),
                "2 to 8 on CPUs, else no bound");
  table.number("schedule-conservativeness", engine.schedule.schedule_conservativeness, 0, 100,
               "above 1 admits fewer requests and retracts fewer");
}

void add_cache_rows(SettingTable& table, AppConfig& config) {
  EngineConfig& engine = config.engine;
  table.choice("radix-eviction-policy", engine.cache.radix_eviction_policy,
               {"lru", "lfu", "fifo", "mru", "slru", "priority"},
               "which cached prefix goes first when memory is short");
  table.number("swa-full-tokens-ratio", engine.cache.swa_full_tokens_ratio, 0, 1,
               "KV tokens that layers with a sliding window keep, for each of the others'");
  table.toggle("disable-hybrid-swa-memory", engine.cache.disable_hybrid_swa_memory,
               "layers with a sliding window keep all KV tokens, as the others do");
  table.toggle("disable-radix-cache", engine.cache.disable_radix_cache, "keep no prefixes");
  shown_default(
      table.custom(
          "kv-events-config", "JSON",
          "keep the cache's events for GET /kv_events: {\"publisher\": \"http\", "
          "\"buffer_steps\": 10000}; with the publisher zmq, publish them as vLLM does, too: "
          "endpoint (tcp://*:5557), replay_endpoint (none), topic",
          "",
          [&config](std::string_view value) {
            return read_kv_events_config(value, config.engine.cache.num_cache_events,
                                         config.server.telemetry.kv_events);
          }),
      "none are kept");
}

void add_tier_rows(SettingTable& table, EngineConfig& engine) {
  table
      .toggle(
          "enable-hierarchical-cache", engine.tiers.enable_hierarchical_cache,
          "keep cached prefixes beyond the device, too: in the host's memory (hicache-size) and "
          "on disk (hicache-storage-backend file); best with a page-size of 16 or more")
      .aliases = {"enable-hicache"};
  shown_default(table.number("hicache-size", engine.tiers.hicache_size_gb, 0, 1e6,
                             "GB of the host's memory that keep pages"),
                "none");
  shown_default(table.number("hicache-ratio", engine.tiers.hicache_ratio, 0, 1000,
                             "the same in multiples of the device's KV memory"),
                "none");
  table.choice("hicache-write-policy", engine.tiers.hicache_write_policy,
               {"write_through", "write_through_selective", "write_back"},
               "when a page is copied: when it is computed, when it is used again, or when the "
               "device gives it up");
  table.choice(
      "hicache-storage-backend", engine.tiers.hicache_storage_backend,
      {"none", "file", "redis", "s3", "file,redis", "file,s3"},
      "where pages stay beyond the process: file, in a folder that all processes of this "
      "model share and that is found again after a restart; redis, in a Redis or Valkey "
      "server, or s3, in a bucket of S3 or a store like it, which servers of several hosts "
      "share");
  shown_default(
      table.custom("hicache-storage-backend-extra-config", "JSON",
                   "of redis: an object with url (redis://USER:PASSWORD@HOST:PORT/DATABASE, "
                   "rediss for TLS), of s3: with bucket, and others of docs/tiers.md, or @FILE",
                   "",
                   [&engine](std::string_view value) {
                     return read_storage_config(value, true, engine.tiers);
                   }),
      "redis://127.0.0.1:6379/0");
  table.choice("hicache-storage-prefetch-policy", engine.tiers.hicache_storage_prefetch_policy,
               {"best_effort", "wait_complete", "timeout"},
               "how long an admitted request waits for pages in storage: not at all, until all are "
               "there, or 1 s and 250 ms for each 1,024 tokens at most");
  shown_default(table.path("hicache-storage-path", engine.tiers.hicache_storage_path,
                           "folder of hicache-storage-backend file"),
                "espalier/kv in XDG_CACHE_HOME or ~/.cache");
  table.number("hicache-disk-size", engine.tiers.hicache_disk_size_gb, 0.000001, 1e6,
               "GB that it may take on disk for one model");
}

void add_disaggregation_rows(SettingTable& table, EngineConfig& engine) {
  DisaggregationSettings& d = engine.disaggregation;
  table.choice("disaggregation-mode", d.disaggregation_mode, {"null", "prefill", "decode"},
               "what this server does of requests with a bootstrap_room: prefill computes their "
               "prompts for a decode server, decode goes on from there; null: requests have none");
  table.choice("disaggregation-transfer-backend", d.disaggregation_transfer_backend,
               {"auto", "tcp"},
               "how keys and values go to the decode server: auto is memory that both servers of a "
               "host map (of GPUs: CUDA IPC), and TCP between hosts");
  table.integer("disaggregation-bootstrap-port", d.disaggregation_bootstrap_port, 0, 65535,
                "where a prefill server listens for decode servers, on the address of host; 0: any "
                "that is free");
  shown_default(table.text("disaggregation-token", d.disaggregation_token, "TOKEN",
                           "that a prefill and a decode server share; needed where the prefill "
                           "server's host is not this computer alone"),
                "none");
  table.number("disaggregation-timeout", d.disaggregation_timeout, 0.001, 86400,
               "seconds that a prefill server waits for a request's other half");
}

void add_execution_rows(SettingTable& table, EngineConfig& engine) {
  table.toggle("disable-overlap-schedule", engine.compute.disable_overlap_schedule,
               "wait for each step before the next is prepared");
  table
      .toggle("disable-cuda-graph", engine.compute.disable_cuda_graph,
              "launch every kernel of a decode step by itself")
      .aliases = {"disable-decode-cuda-graph"};
  table.toggle("disable-cascade-attention", engine.compute.disable_cascade_attention,
               "on a GPU, read keys and values that several requests share for each by itself");
  table.toggle("enable-deterministic-inference", engine.compute.enable_deterministic_inference,
               "answers are the same bits whatever runs beside them, however prompts are cut and "
               "whatever is cached, on a GPU too, where it costs speed (the CPU always does it)");
  table.toggle("enable-return-hidden-states", engine.compute.enable_return_hidden_states,
               "requests may ask for hidden states (return_hidden_states)");
  table.toggle("enable-weights-cpu-backup", engine.compute.enable_weights_cpu_backup,
               "on a GPU, keep as much pinned memory of the host as the weights take, so that "
               "/resume_memory_occupation copies them from there instead of reading their files");
  shown_default(table.path("logit-processor-library", engine.sampling.logit_processor_library,
                           "a shared library of logit processors (espalier/logit_processor.h), "
                           "which requests name by logit_processor; it runs inside the server"),
                "none");
}

void add_logprob_rows(SettingTable& table, EngineConfig& engine) {
  table.choice("logprobs-mode", engine.sampling.logprobs_mode, {"processed", "original", "raw"},
               "log-probabilities of output tokens: processed, after penalties, bias, grammar mask "
               "and temperature; original, without the temperature (SGLang's "
               "SGLANG_RETURN_ORIGINAL_LOGPROB); raw, of the model's logits");
}

void add_grammar_rows(SettingTable& table, EngineConfig& engine) {
  Setting& grammars = table.choice(
      "grammar-backend", engine.grammar.grammar_backend, {"espalier", "none"},
      "what holds answers to regex, ebnf, json_schema and structural_tag; none refuses them; "
      "xgrammar, outlines and llguidance mean espalier");
  grammars.set = [set = grammars.set](std::string_view value) {
    const bool other = value == "xgrammar" || value == "outlines" || value == "llguidance";
    return set(other ? "espalier" : value);
  };
  table.toggle("constrained-json-disable-any-whitespace",
               engine.grammar.constrained_json_disable_any_whitespace,
               "JSON without white space where a request does not say (json_whitespace)");
  table.toggle("disable-jump-forward", engine.grammar.disable_jump_forward,
               "sample every token, those that a grammar leaves no choice for too");
  table.toggle("disable-drafts", engine.grammar.disable_draft_tokens,
               "propose no draft tokens from earlier answers of the same grammar");
  table.choice(
      "speculative-algorithm", engine.speculation.speculative_algorithm,
      {"none", "auto", "NGRAM", "RADIX", "COMBINED", "EAGLE3", "NEXTN", "STANDALONE"},
      "draft tokens, verified by the model's own samples: NGRAM takes them from the text of a "
      "request "
      "without a grammar and from recent answers, RADIX from what other requests said behind the "
      "same "
      "prefix, COMBINED from whichever was right of late, EAGLE3 from a draft head, NEXTN from the "
      "checkpoint's layer for multi-token prediction, STANDALONE from a draft model, auto from a "
      "head "
      "in the model's folder on the CPU; where it pays");
  table.path("speculative-draft-model-path", engine.speculation.speculative_draft_model_path,
             "folder of the draft head that EAGLE3 or NEXTN runs, or of the draft model of "
             "STANDALONE; empty: `draft` in the model's folder, of NEXTN the model's");
  table.integer("speculative-num-steps", engine.speculation.speculative_num_steps, 1, 16,
                "tokens that a draft head or model proposes in a row, at most");
  table.integer("speculative-num-draft-tokens", engine.speculation.speculative_num_draft_tokens, 1,
                16, "draft tokens of one request in one step, at most");
  table.integer("speculative-ngram-capacity", engine.speculation.speculative_ngram_capacity, 32,
                1 << 26, "tokens of recent answers that NGRAM and COMBINED search");
  table.integer("grammar-threads", engine.grammar.grammar_threads, 1, 256,
                "threads that compile grammars");
  table.number("grammar-compile-seconds", engine.grammar.grammar_compile_seconds, 0.001, 3600,
               "that compiling one grammar may take");
  shown_default(table.integer("grammar-cache-bytes", engine.grammar.grammar_cache_bytes, 0,
                              std::numeric_limits<int64_t>::max(),
                              "memory of the compiled grammars that are kept; the least recently "
                              "used are dropped first"),
                "a sixteenth of the memory that is available, from 64 MiB to 2 GiB");
  shown_default(
      table.integer("max-session-bytes", engine.cache.max_session_bytes, 0,
                    std::numeric_limits<int64_t>::max(),
                    "memory that open sessions hold together; beyond, requests of sessions "
                    "get 503"),
      "a thirty-second of the memory that is available, from 64 MiB to 1 GiB");
  shown_default(table.integer("grammar-mask-threads", engine.grammar.grammar_mask_threads, 0, 256,
                              "threads that say, step by step, which tokens the grammars of all "
                              "requests allow, the scheduler's among them"),
                "1; on a GPU half of the cores, at most 8");
}

void add_stage_rows(SettingTable& table, EngineConfig& engine) {
  table
      .integer("pp-size", engine.compute.pp_size, 1, 1024,
               "stages of a pipeline that divide the layers among themselves, of --tp-size ranks "
               "each: on the next GPUs, or on the CPU with parts of the threads; the tokens of a "
               "step pass through them in micro-batches")
      .aliases = {"pipeline-parallel-size", "pp"};
  shown_default(
      table.integer("pp-micro-batch-tokens", engine.compute.pp_micro_batch_tokens, 0, 1 << 20,
                    "tokens of a micro-batch that a stage of --pp-size computes, as far as a step "
                    "has so many"),
      "64 on the CPU, 1024 on GPUs");
}

void add_system_rows(SettingTable& table, EngineConfig& engine) {
  shown_default(table.integer("random-seed", engine.sampling.random_seed, 0,
                              std::numeric_limits<int64_t>::max(),
                              "of requests without a seed of their own, and of dummy weights"),
                "drawn");
  table.group("System");
  table.custom(
      "device", "auto|cpu|cuda|cuda:N",
      "what computes; auto takes a GPU where one can be used, else the CPU, and logs its choice; "
      "cuda:N is the GPU N",
      engine.compute.device, [&engine](std::string_view value) -> Status {
        if (const auto name = parse_device(value); !name) return name.error();
        engine.compute.device = value;
        return Status();
      });
  table.integer("base-gpu-id", engine.compute.base_gpu_id, 0, 1023,
                "the GPU of --device auto and cuda, by its index among those that "
                "CUDA_VISIBLE_DEVICES leaves");
  shown_default(table.integer("num-threads", engine.compute.num_threads, 0, 4096,
                              "threads that compute; more than processors are not taken"),
                "one a processor");
  table
      .integer(
          "tp-size", engine.compute.tp_size, 1, 1024,
          "ranks that divide the model among themselves: GPUs from --base-gpu-id on, or on the "
          "CPU parts of the threads; each has a part of the heads and of the features")
      .aliases = {"tensor-parallel-size", "tp"};
  table.toggle("disable-custom-all-reduce", engine.compute.disable_custom_all_reduce,
               "let the GPUs of --tp-size exchange by NCCL, which must be installed");
  add_stage_rows(table, engine);
  add_expert_rows(table, engine.compute);
  table
      .integer("dp-size", engine.compute.dp_size, 1, 256,
               "replicas of the model, each with a scheduler and a cache of its own: on the next "
               "--tp-size * --pp-size GPUs, or on the CPU with a part of the threads and of the "
               "memory")
      .aliases = {"data-parallel-size", "dp"};
  table.toggle("enable-dp-attention", engine.compute.enable_dp_attention,
               "data-parallel attention: each rank of --tp-size computes the attention of requests "
               "of its own and keeps their keys and values alone; MLPs and experts stay divided "
               "(--dp-size then is --tp-size or left out)");
  table.custom("load-balance-method", "auto|round_robin|shortest_queue|cache_aware",
               "which replica of --dp-size gets a request: the next one, the one with the fewest "
               "requests (also total_requests), or, which is auto, the one that has the prompt's "
               "prefix unless it is overloaded",
               engine.compute.load_balance_method, [&engine](std::string_view value) -> Status {
                 if (const auto method = parse_load_balance(value); !method) return method.error();
                 engine.compute.load_balance_method = value;
                 return {};
               });
  shown_default(table.integer("tokenizer-worker-num", engine.model.tokenizer_threads, 0, 256,
                              "threads that turn text into tokens"),
                "chosen");
  table.number("watchdog-timeout", engine.watch.watchdog_timeout, 0, 1e6,
               "seconds after which a step that has not ended is reported in the log as an error, "
               "with the stacks of all threads; nothing is ended. 0 is never");
  table.number("soft-watchdog-timeout", engine.watch.soft_watchdog_timeout, 0, 1e6,
               "the same as a warning, at another time");
}

void add_adapter_rows(SettingTable& table, EngineConfig& engine) {
  table.group("Control vectors");
  Setting& vectors = table.list(
      "control-vector", engine.control.control_vectors, "NAME=PATH",
      "take the directions in this file, GGUF (as llama.cpp has them) or safetensors with tensors "
      "direction.N, which a request adds to hidden states by the field control_vector");
  vectors.takes_several = true;
  shown_default(vectors, "none");
  table.group("LoRA adapters");
  table.toggle("enable-lora", engine.lora.enable_lora,
               "take LoRA adapters: those of --lora-paths, and what "
               "/load_lora_adapter brings");
  Setting& paths = table.list(
      "lora-paths", engine.lora.lora_paths, "NAME=PATH",
      "load the adapters in these folders, as PEFT saved them, and call them NAME (without one, by "
      "the folder's), which implies --enable-lora");
  paths.takes_several = true;
  shown_default(paths, "none");
  table.integer("max-loras-per-batch", engine.lora.max_loras_per_batch, 1, 65536,
                "adapters of requests that run at once; requests of others wait");
  shown_default(table.integer("max-lora-rank", engine.lora.max_lora_rank, 0, 4096,
                              "refuse adapters of a higher rank"),
                "any rank; on a GPU 256");
  shown_default(table.integer("max-loaded-loras", engine.lora.max_loaded_loras, 0, kInt32Max,
                              "adapters in memory; beyond, loading one is refused"),
                "no bound");
  shown_default(table.integer("max-lora-bytes", engine.lora.max_lora_bytes, 0,
                              std::numeric_limits<int64_t>::max(),
                              "memory of all adapters; beyond, loading one is refused"),
                "a quarter of the memory that is available, of a GPU's, which is reserved at the "
                "start, a sixteenth; at least 64 MiB");
}

void add_picture_rows(SettingTable& table, EngineConfig& engine) {
  table.group("Pictures");
  shown_default(table.integer("image-threads", engine.images.image_threads, 0, 256,
                              "threads that fetch and decode pictures; on a GPU what they bring is "
                              "encoded together"),
                "4; beside a GPU one for each processor, up to 16");
  shown_default(
      table.integer("image-cache-bytes", engine.images.image_cache_bytes, 0, int64_t{1} << 50,
                    "memory of what the encoder made of pictures: those of requests in "
                    "progress and those kept for later ones"),
      "a sixteenth of the memory that is available, from 256 MiB to 4 GiB");
  table.integer("max-images-per-request", engine.images.max_images_per_request, 1, 65536,
                "beyond, a request is refused");
  table.integer("max-image-bytes", engine.images.max_image_bytes, 1, int64_t{1} << 40,
                "of a picture's file");
  table.integer("max-image-pixels", engine.images.max_image_pixels, 1, int64_t{1} << 40,
                "width times height of a picture, or of a video's frame");
  table.number("max-video-seconds", engine.images.max_video_seconds, 0.1, 86'400,
               "of a video's file, at up to 1920 x 1080 pixels 60 times a second: larger frames or "
               "more of them last less");
}

void add_audio_rows(SettingTable& table, EngineConfig& engine) {
  table.group("Speech");
  table.integer("max-audio-bytes", engine.audio.max_audio_bytes, 1, int64_t{1} << 40,
                "of an audio file; a request's body is bounded by --max-body-bytes, too");
  table.number("max-audio-seconds", engine.audio.max_audio_seconds, 0.1, 86'400,
               "of an audio file's sound");
}

}  // namespace

void add_tls_rows(SettingTable& table, net::TlsFiles& tls) {
  table.text("ssl-certfile", tls.certificate, "FILE",
             "certificate chain (PEM): https is served; SIGHUP reads it and its key again");
  shown_default(table.text("ssl-keyfile", tls.key, "FILE", "its private key (PEM)"),
                "ssl-certfile");
  table.text("ssl-keyfile-password", tls.key_password, "TEXT",
             "password of an encrypted private key");
  table.text("ssl-ca-certs", tls.client_ca, "FILE",
             "clients must show a certificate that one of these signed (PEM)");
}

namespace {

void add_media_rows(SettingTable& table, MediaSourceConfig& media) {
  Setting& domains =
      table.list("allowed-media-domains", media.allowed_media_domains, "HOST",
                 "hosts that pictures of requests are fetched from: a name, *.NAME or *");
  domains.takes_several = true;
  shown_default(domains, "none: pictures come as data URLs");
  table.toggle("allow-private-media-addresses", media.allow_private_media_addresses,
               "fetch pictures of these hosts from loopback and private addresses too");
  table.text("allowed-local-media-path", media.allowed_local_media_path, "FOLDER",
             "whose files requests may name by file:// URLs");
  table.seconds("media-fetch-timeout", media.media_fetch_timeout,
                "for fetching a picture, redirects included");
}

void add_answer_rows(SettingTable& table, ServerConfig& server) {
  table.group("Server");
  table.text("host", server.host, "ADDRESS", "address to listen on; 0.0.0.0 for every interface");
  table.integer("port", server.port, 0, 65535, "port to listen on; 0: any that is free");
  refuse_empty_key(table.text("api-key", server.access.api_key, "KEY",
                              "that clients must send as a bearer token"));
  Setting& admin_key = table.text("admin-api-key", server.access.admin_api_key, "KEY",
                                  "the same, for administrative routes");
  refuse_empty_key(admin_key);
  shown_default(admin_key, "api-key");
  table.text("api-keys-file", server.access.api_keys_file, "FILE",
             "keys with names and limits a minute (JSON); SIGHUP reads it again");
  refuse_empty_key(table.text("router-api-key", server.access.router_api_key, "KEY",
                              "of a router alone (its worker-api-key): tenants that it states by "
                              "headers count as those of api-keys-file"));
  add_tls_rows(table, server.access.tls);
  shown_default(table.list("cors-origins", server.access.cors_origins, "ORIGIN",
                           "whose pages may read answers; * is everyone, and each use adds one"),
                "everyone; nobody without a key beyond loopback");
  shown_default(table.text("served-model-name", server.answers.served_model_name, "NAME",
                           "the model's name in /v1/models and in answers"),
                "model-path as it is given");
  table.text("weight-version", server.answers.weight_version, "NAME", "reported in answers");
  shown_default(table.text("chat-template", server.answers.chat_template, "FILE",
                           "Jinja template, or the path of one"),
                "the model's");
  shown_default(table.custom("tool-call-parser", "NAME",
                             "format of tool calls: " + joined(tool_call_format_names()), "",
                             [&server](std::string_view value) -> Status {
                               ESP_RETURN_IF_ERROR(check_tool_call_format(value));
                               server.answers.tool_call_parser = value;
                               return {};
                             }),
                "what the chat template speaks");
  table.integer("max-parallel-tool-calls", server.answers.max_parallel_tool_calls, 0, 1024,
                "calls of one answer where a grammar writes them (required or strict tools); 0 is "
                "no bound");
  shown_default(
      table.custom("reasoning-parser", "NAME",
                   "how reasoning is marked: none, " + joined(reasoning_format_names()), "",
                   [&server](std::string_view value) -> Status {
                     server.answers.reasoning_parser = value;
                     if (value == "none") return {};
                     ESP_ASSIGN_OR_RETURN([[maybe_unused]] const auto format,
                                          find_reasoning_format(value));
                     return {};
                   }),
      "what the chat template speaks");
  table.toggle("enable-cache-report", server.answers.enable_cache_report,
               "report cached tokens in the usage of OpenAI answers");
  table.toggle("enable-metrics", server.answers.enable_metrics,
               "add timings to meta_info (/metrics is always there)");
  table.toggle("incremental-streaming-output", server.answers.incremental_streaming_output,
               "stream only new text in /generate instead of all so far");
  table.integer("stream-interval", server.answers.stream_interval, 1, 65536,
                "tokens between two events of a stream");
  table.toggle("log-requests", server.telemetry.log_requests,
               "one line at the end of each request");
}

void add_observer_rows(SettingTable& table, ServerConfig& server) {
  table.text("otlp-traces-endpoint", server.telemetry.otlp_traces_endpoint, "URL",
             "OpenTelemetry collector that gets spans of each request: http://HOST:4318 (OTLP over "
             "HTTP)");
  table.text("otlp-service-name", server.telemetry.otlp_service_name, "NAME",
             "the server's name in traces");
  table.text("request-log", server.telemetry.request_log, "FILE",
             "file that gets a line of JSON for each request, for `espalier replay`; prompts are "
             "left out of it");
  table.toggle("request-log-prompts", server.telemetry.request_log_prompts,
               "keep prompts and all else of the bodies in --request-log");
  table.integer("request-log-max-bytes", server.telemetry.request_log_max_bytes, 0,
                int64_t{1} << 50,
                "size at which --request-log is renamed to FILE.1, which it replaces; 0 is never");
  table.text("profile-dir", server.telemetry.profile_dir, "PATH",
             "folder of the traces that /start_profile records, and the only one that its callers "
             "may write to; without it there are no profiles");
  table.text("cache-file-dir", server.storage.cache_file_dir, "PATH",
             "folder of the files that /cache/export writes and /cache/import reads, the only one "
             "that their callers reach; without it there are none");
}

void add_playground_row(SettingTable& table, ServerConfig& server) {
  Setting& playground =
      table.custom("enable-playground", "on|off",
                   "serve a page for browsers at / that talks to the model and shows the cache "
                   "(without a value: on)",
                   "", [&server](std::string_view value) -> Status {
                     const bool on = value.empty() || value == "on" || value == "true";
                     if (!on && value != "off" && value != "false")
                       return invalid_argument("must be on or off, but it is \"{}\"", value);
                     server.enable_playground = on;
                     return {};
                   });
  shown_default(playground, "on where --host is of this computer alone");
  playground.value_may_lack = true;
}

void add_class_rows(SettingTable& table, AnswerConfig& answers) {
  table.choice("rerank-format", answers.rerank_format, {"sglang", "jina"},
               "shape of the answers of /v1/rerank; those of /rerank and /v2/rerank are always "
               "jina's");
  table.text("moderation-safe-labels", answers.moderation_safe_labels, "LABELS",
             "classes that do not flag a text in /v1/moderations, separated by commas");
}

void add_limit_rows(SettingTable& table, AppConfig& config) {
  ServerConfig& server = config.server;
  table.group("Limits");
  table.integer("max-connections", server.limits.max_connections, 1, 1000000, "open at once");
  table.integer("max-body-bytes", server.limits.max_body_bytes, 1, int64_t{1} << 40,
                "of a request");
  table.integer("max-pending-output-bytes", server.limits.max_pending_output_bytes, 1024,
                int64_t{1} << 40,
                "of a stream that its client does not read; beyond, it is dropped");
  shown_default(
      table.integer("max-bodies-bytes", server.limits.max_bodies_bytes, 0, int64_t{1} << 50,
                    "of the bodies of all requests and what reading their JSON "
                    "takes; beyond, a request gets 503"),
      "chosen from the memory");
  shown_default(
      table.integer("max-outputs-bytes", server.limits.max_outputs_bytes, 0, int64_t{1} << 50,
                    "of all answers that their clients have not read; beyond, the client "
                    "whose answer grows is dropped"),
      "chosen from the memory");
  table.integer("max-responses-bytes", server.storage.max_responses_bytes, 0, int64_t{1} << 50,
                "of stored responses, chat completions and conversations; beyond, the least "
                "recently used are given up");
  table.seconds("responses-time-to-live", server.storage.responses_time_to_live,
                "after which a stored answer that was not used is given up");
  table
      .text("storage-path", server.storage.storage_path, "FOLDER",
            "of uploaded files and batches (/v1/files, /v1/uploads, /v1/batches); without, they "
            "are refused")
      .aliases = {"file-storage-path"};
  table.integer("max-storage-bytes", server.storage.max_storage_bytes, 0, int64_t{1} << 60,
                "of all files in --storage-path; beyond, an upload gets 503");
  shown_default(table.integer("max-batch-requests", server.storage.max_batch_requests, 0, 1 << 20,
                              "lines of batches that run at once"),
                "half of max-running-requests");
  table.seconds("header-timeout", server.limits.header_timeout, "for all of a request's headers");
  table.seconds("idle-timeout", server.limits.idle_timeout,
                "between requests of a connection, or pieces of a body");
  table.seconds("write-timeout", server.limits.write_timeout, "without progress in sending");
  table.seconds("health-timeout", server.limits.health_timeout,
                "for the token of /health_generate");
  table.path("warm-prompts", config.warm_prompts,
             "file of prompts that are computed before requests are taken, so that what begins as "
             "they do is cached: a line of JSON for each, a text or an object with text or "
             "input_ids, and perhaps extra_key");
  table.seconds("drain-timeout", config.drain_timeout,
                "for running requests when the server is stopped");
  table.integer("io-threads", server.limits.io_threads, 1, 256, "threads that serve sockets");
  table.integer("worker-threads", server.limits.worker_threads, 1, 256,
                "threads that read large bodies and long texts");
}

}  // namespace

void add_engine_settings(SettingTable& table, AppConfig& config) {
  add_model_rows(table, config.engine, config.hub);
  add_memory_rows(table, config.engine);
  add_scheduling_rows(table, config.engine);
  add_cache_rows(table, config);
  add_tier_rows(table, config.engine);
  add_disaggregation_rows(table, config.engine);
  add_execution_rows(table, config.engine);
  add_logprob_rows(table, config.engine);
  add_grammar_rows(table, config.engine);
  add_system_rows(table, config.engine);
  add_adapter_rows(table, config.engine);
  add_picture_rows(table, config.engine);
  add_audio_rows(table, config.engine);
  table.group("Logging");
  table.custom("log-level", "debug|info|warning|error|off", "least important lines that are logged",
               config.log_level, [&config](std::string_view value) -> Status {
                 ESP_ASSIGN_OR_RETURN([[maybe_unused]] const LogLevel level,
                                      parse_log_level(value));
                 config.log_level = value;
                 return {};
               });
}

void add_server_settings(SettingTable& table, AppConfig& config) {
  add_node_rows(table, config.nodes);
  add_answer_rows(table, config.server);
  add_served_models_row(table, config);
  add_observer_rows(table, config.server);
  add_playground_row(table, config.server);
  add_class_rows(table, config.server.answers);
  add_media_rows(table, config.server.media);
  add_limit_rows(table, config);
}

std::string url_host(const std::string& host) {
  return host.find(':') == std::string::npos ? host : "[" + host + "]";
}

std::string settings_markdown() {
  AppConfig config;
  SettingTable table;
  add_server_settings(table, config);
  add_engine_settings(table, config);
  const std::string out =
      "# Settings\n\n"
      "Every setting is a flag of `espalier serve`; those of the engine are flags of the other "
      "commands too.\n"
      "It can stand in a file (`--config FILE`, JSON or TOML, by the same name with `-` or `_`; a "
      "table where\n"
      "the value is JSON) or in the environment. A flag wins over the environment, the environment "
      "over the\n"
      "file, the file over the default. What makes another setting that was given mean nothing is "
      "an error.\n";
  return out + rows_markdown(table);
}

std::string rows_markdown(const SettingTable& table) {
  std::string out, heading;
  for (const Setting& row : table.rows()) {
    if (row.group != heading) {
      heading = row.group;
      out += fmt::format(
          "\n## {}\n\n| flag | environment | default | meaning |\n|---|---|---|---|\n", heading);
    }
    std::string value = row.value_name;
    for (size_t at = 0; (at = value.find('|', at)) != std::string::npos; at += 2)
      value.replace(at, 1, "\\|");
    out += fmt::format("| `--{}`{}{} | `{}` | {} | {} |\n", row.name, value.empty() ? "" : " ",
                       value, environment_name(row.name),
                       row.is_switch() ? "off" : row.default_text, row.help);
  }
  return out;
}

}  // namespace espalier::apps
