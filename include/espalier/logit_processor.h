/* Logit processors of an operator: functions in a shared library that change the logits of every
 * token that a request samples. A server loads the library at its start (--logit-processor-library
 * FILE.so); a request names a processor (logit_processor) and may give it a text
 * (logit_processor_params). No code comes from a request.
 *
 * The library exports espalier_logit_processors. It runs inside the server, with all that the
 * server may do: load what you trust. Processors run on the CPU; an engine on a GPU refuses
 * requests that name one.
 *
 * Thread safety: create and destroy are called from any thread, apply from one thread at a time for
 * each state, and for several states at the same time. None may throw or end the process. */
#ifndef ESPALIER_LOGIT_PROCESSOR_H_
#define ESPALIER_LOGIT_PROCESSOR_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised where a library of an older header would be misread; the server refuses another one. */
#define ESPALIER_LOGIT_PROCESSOR_ABI 1

/* What apply reads, and the logits that it changes. */
typedef struct espalier_logits {
  const int32_t* tokens; /* [num_tokens]: the prompt, then the output so far */
  int32_t num_tokens;
  int32_t num_prompt; /* of num_tokens, those of the prompt */
  int32_t vocab_size;
  float* logits; /* [vocab_size], after penalties and bias; -INFINITY bans a token */
} espalier_logits;

typedef struct espalier_logit_processor {
  uint32_t abi; /* ESPALIER_LOGIT_PROCESSOR_ABI */
  const char* name;
  const char* description; /* one sentence; may be NULL */
  /* Makes the state of one sample. `params` ends with a zero byte and is "" where the request gives
   * none. NULL refuses the request, with a message of at most error_size bytes, the last one zero,
   * in `error`. */
  void* (*create)(const char* params, int32_t vocab_size, char* error, size_t error_size);
  /* Changes the logits of the next token. It may be called twice for a position, with the same
   * tokens, and must then do the same. 0, or another number after writing a message, which ends the
   * request with that error. */
  int (*apply)(void* state, const espalier_logits* logits, char* error, size_t error_size);
  void (*destroy)(void* state);
} espalier_logit_processor;

/* Exported by the library: its processors by index from 0 on, NULL behind the last. What it returns
 * stays valid as long as the library is loaded. */
__attribute__((visibility("default"))) const espalier_logit_processor* espalier_logit_processors(
    int32_t index);

#ifdef __cplusplus
}
#endif

#endif /* ESPALIER_LOGIT_PROCESSOR_H_ */
