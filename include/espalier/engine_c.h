/* The engine as a library: open a model, submit requests, read their events. Link libespalier
 * (pkg-config espalier, or Espalier::engine of find_package(Espalier)). engine.h has the same for
 * C++17.
 *
 * Order of use: esp_engine_open, esp_engine_submit for each request, esp_call_next until the call
 * has ended. Any number of calls run at once and share batches and cached prefixes.
 *
 * Ownership: open and submit give an object that its free function releases; free functions accept
 * NULL. A call keeps its engine alive, so objects may be freed in any order. Inputs are copied.
 *
 * Thread safety: an engine may be used from any threads at once. One call is read by one thread at
 * a time; esp_call_cancel may come from any thread while the call exists.
 *
 * Errors: functions that can fail return a status and write a message that ends with a zero byte to
 * `error`, cut to `error_size` bytes. `error` may be NULL when error_size is 0. */
#ifndef ESPALIER_ENGINE_C_H_
#define ESPALIER_ENGINE_C_H_

#include "espalier/status_c.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct esp_engine esp_engine;
typedef struct esp_call esp_call;

/* esp_engine_options_init sets the defaults; change what differs. */
typedef struct esp_engine_options {
  size_t struct_size;           /* sizeof(esp_engine_options), so that fields can be added */
  const char* model_path;       /* as --model-path (docs/flags.md); NULL: the model that ships */
  const char* device;           /* "auto", "cpu" or "cuda"; NULL: "auto" */
  int32_t context_length;       /* tokens that prompt and output share; 0: the model's */
  int32_t max_running_requests; /* samples that run at once; 0: chosen */
  int32_t num_threads;          /* compute threads of the CPU; 0: one for each processor */
  /* Further settings by the names of docs/flags.md, without dashes before them: settings[2 * i] is
   * a name and settings[2 * i + 1] its value; a switch takes "true" or "false". */
  const char* const* settings;
  size_t num_settings; /* pairs */
} esp_engine_options;
ESP_API void esp_engine_options_init(esp_engine_options* options);

/* When a beam search ends that has as many answers as beams. */
typedef enum esp_early_stopping {
  ESP_EARLY_STOPPING_NO = 0,   /* when its best beam would not displace one if it ended now */
  ESP_EARLY_STOPPING_YES = 1,  /* at once */
  ESP_EARLY_STOPPING_NEVER = 2 /* when no beam can displace one */
} esp_early_stopping;

/* esp_request_init sets the defaults. Some numbers have a value by which the model's generation
 * defaults hold, stated beside them. */
typedef struct esp_request {
  size_t struct_size;
  const char* text; /* text_size bytes of UTF-8; read when num_input_ids is 0 */
  size_t text_size;
  const int32_t* input_ids; /* [num_input_ids], the prompt as tokens */
  size_t num_input_ids;
  int32_t max_new_tokens;  /* default 128 */
  float temperature;       /* 0: greedy; default NaN: the model's */
  float top_p, min_p;      /* in (0, 1], [0, 1); default NaN: the model's */
  int32_t top_k;           /* default 0: the model's; -1: no limit */
  int32_t num_samples;     /* answers of this prompt; default 1 */
  int64_t seed;            /* of the draws; default -1: drawn from the engine's generator */
  const char* const* stop; /* [num_stop] strings that end an answer and are not part of it */
  size_t num_stop;
  const char* json_schema; /* what an answer must match; at most one of the three, default NULL */
  const char* regex;
  const char* ebnf;
  int ignore_eos; /* not 0: end-of-sequence tokens do not end an answer */
  int embed;      /* not 0: the text's vector instead of an answer */
  /* Above 0: beam search of so many beams, at least num_samples, instead of draws: the num_samples
   * best answers, each in one event (docs/beam_search.md). */
  int32_t beam_width;
  float length_penalty; /* of beam search; default 1 */
  int32_t early_stopping; /* of beam search: an esp_early_stopping; default ESP_EARLY_STOPPING_NO */
} esp_request;
ESP_API void esp_request_init(esp_request* request);

typedef enum esp_finish {
  ESP_FINISH_NONE = 0,   /* the sample goes on */
  ESP_FINISH_STOP = 1,   /* a stop string, a stop token or the grammar's end */
  ESP_FINISH_LENGTH = 2, /* max_new_tokens or the context's length */
  ESP_FINISH_ABORT = 3,  /* cancelled */
  ESP_FINISH_ERROR = 4
} esp_finish;

/* What is new of one sample. Pointers are valid until the next function is called on the call. */
typedef struct esp_event {
  int32_t sample;   /* in [0, num_samples) */
  const char* text; /* text_size bytes of whole UTF-8 characters, then a zero byte */
  size_t text_size;
  const int32_t* ids; /* [num_ids] new output tokens */
  size_t num_ids;
  const float* embedding; /* [embedding_size], in the last event of a request with `embed` */
  size_t embedding_size;
  esp_finish finish;
  esp_status status;   /* with ESP_FINISH_ERROR and ESP_FINISH_ABORT: why */
  const char* message; /* the same in words, else "" */
  int32_t prompt_tokens, cached_tokens, completion_tokens; /* so far; cached: of the prompt's */
  float beam_score; /* of an answer of beam search; else NaN */
} esp_event;

/* Loads the model and starts the engine's threads. `options` may be NULL: the model that ships. */
ESP_API esp_status esp_engine_open(const esp_engine_options* options, esp_engine** engine,
                                   char* error, size_t error_size);
ESP_API void esp_engine_free(esp_engine* engine);
/* Tokens that prompt and output may share. */
ESP_API int32_t esp_engine_context_length(const esp_engine* engine);

/* Checks the request and hands it to the scheduler; does not wait for the model. */
ESP_API esp_status esp_engine_submit(esp_engine* engine, const esp_request* request,
                                     esp_call** call, char* error, size_t error_size);
/* Waits for the next event: 1, and `event` is filled. 0: every sample has ended. */
ESP_API int esp_call_next(esp_call* call, esp_event* event);
/* Ends the call's samples after the step in flight; each has its last event with
 * ESP_FINISH_ABORT. */
ESP_API void esp_call_cancel(esp_call* call);
/* Cancels what still runs. */
ESP_API void esp_call_free(esp_call* call);

#ifdef __cplusplus
}
#endif

#endif /* ESPALIER_ENGINE_C_H_ */
