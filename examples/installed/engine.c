/* Streams an answer to standard output, cancels another, and shows how an error reads.
 *
 *   engine_c [MODEL_FOLDER]      # without one: the model that ships */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "espalier/engine_c.h"

static char error[512];

static void require(int condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "failed: %s\n%s\n", what, error);
  exit(1);
}

static void show_error(void) {
  esp_engine_options options;
  esp_engine* engine = NULL;
  esp_engine_options_init(&options);
  options.model_path = "/no/such/model";
  require(esp_engine_open(&options, &engine, error, sizeof error) == ESP_NOT_FOUND && !engine,
          "a model that is absent is refused");
  printf("refused: %.60s\n", error);
}

static esp_call* submit(esp_engine* engine, const char* prompt, int max_new_tokens) {
  esp_request request;
  esp_call* call = NULL;
  esp_request_init(&request);
  request.text = prompt;
  request.text_size = strlen(prompt);
  request.max_new_tokens = max_new_tokens;
  request.temperature = 0;
  request.ignore_eos = 1;
  require(esp_engine_submit(engine, &request, &call, error, sizeof error) == ESP_OK, "a request");
  return call;
}

int main(int argc, char** argv) {
  esp_engine_options options;
  esp_engine* engine = NULL;
  esp_call *call, *cancelled;
  esp_event event;
  esp_finish finish = ESP_FINISH_NONE;
  int32_t num_tokens = 0;

  show_error();
  esp_engine_options_init(&options);
  if (argc > 1) options.model_path = argv[1];
  require(esp_engine_open(&options, &engine, error, sizeof error) == ESP_OK, "the model opens");
  call = submit(engine, "Once upon a time", 16);
  cancelled = submit(engine, "Once upon a time", esp_engine_context_length(engine) / 2);
  esp_engine_free(engine); /* its calls keep it */

  while (esp_call_next(call, &event)) {
    fwrite(event.text, 1, event.text_size, stdout);
    num_tokens += (int32_t)event.num_ids;
    finish = event.finish;
  }
  printf("\n");
  require(finish == ESP_FINISH_LENGTH && num_tokens == 16, "the answer has 16 tokens");
  esp_call_cancel(cancelled);
  while (esp_call_next(cancelled, &event)) finish = event.finish;
  require(finish == ESP_FINISH_ABORT, "a cancelled answer ends so");
  esp_call_free(cancelled);
  esp_call_free(call);
  return 0;
}
