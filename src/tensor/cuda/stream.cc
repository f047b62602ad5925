#include "tensor/cuda/stream.h"

#include <cuda_runtime_api.h>

#include "tensor/cuda/error.h"

namespace espalier::cuda {
namespace internal {

// Errors here have shown themselves at the last synchronisation already.
void Destroy::operator()(CUstream_st* stream) const {
  static_cast<void>(cudaStreamDestroy(stream));
}
void Destroy::operator()(CUevent_st* event) const { static_cast<void>(cudaEventDestroy(event)); }
void Destroy::operator()(CUgraphExec_st* graph) const {
  static_cast<void>(cudaGraphExecDestroy(graph));
}

}  // namespace internal

Result<Stream> Stream::create(bool urgent) {
  cudaStream_t handle = nullptr;
  int least = 0, greatest = 0;
  ESP_RETURN_IF_ERROR(to_status(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                                "read the priorities of streams"));
  ESP_RETURN_IF_ERROR(to_status(
      cudaStreamCreateWithPriority(&handle, cudaStreamNonBlocking, urgent ? greatest : least),
      "make a stream"));
  Stream stream;
  stream.stream_.reset(handle);
  return stream;
}

Status Stream::synchronize() const {
  return to_status(cudaStreamSynchronize(get()), "wait for a stream");
}

Status Stream::wait(const Event& event) const {
  return to_status(cudaStreamWaitEvent(get(), event.get(), 0), "let a stream wait for an event");
}

Status Stream::run_on_host(void (*fn)(void*), void* data) const {
  return to_status(cudaLaunchHostFunc(get(), fn, data), "enqueue a function of the host");
}

Result<Event> Event::create(bool timed) {
  cudaEvent_t handle = nullptr;
  ESP_RETURN_IF_ERROR(to_status(
      cudaEventCreateWithFlags(&handle, timed ? cudaEventDefault : cudaEventDisableTiming),
      "make an event"));
  Event event;
  event.event_.reset(handle);
  return event;
}

Status Event::record(const Stream& stream) const {
  return to_status(cudaEventRecord(get(), stream.get()), "record an event");
}

Status Event::synchronize() const {
  return to_status(cudaEventSynchronize(get()), "wait for an event");
}

Result<bool> Event::is_done() const {
  const cudaError_t code = cudaEventQuery(get());
  if (code == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  ESP_RETURN_IF_ERROR(to_status(code, "ask for an event"));
  return true;
}

Result<double> Event::seconds_since(const Event& earlier) const {
  float milliseconds = 0;
  ESP_RETURN_IF_ERROR(to_status(cudaEventElapsedTime(&milliseconds, earlier.get(), get()),
                                "read the time between two events"));
  return milliseconds * 1e-3;
}

// Thread-local: what other threads do meanwhile is theirs.
Status Graph::begin(const Stream& stream) {
  return to_status(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal),
                   "begin to capture a graph");
}

Result<Graph> Graph::end(const Stream& stream, const Status& status) {
  cudaGraph_t recorded = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream.get(), &recorded);
  const auto destroy = [](cudaGraph_t graph) { static_cast<void>(cudaGraphDestroy(graph)); };
  const std::unique_ptr<CUgraph_st, decltype(destroy)> owned(recorded, destroy);
  ESP_RETURN_IF_ERROR(status);
  ESP_RETURN_IF_ERROR(to_status(ended, "capture a graph"));
  cudaGraphExec_t handle = nullptr;
  ESP_RETURN_IF_ERROR(to_status(cudaGraphInstantiate(&handle, recorded, 0), "instantiate a graph"));
  Graph graph;
  graph.graph_.reset(handle);
  return graph;
}

Status Graph::launch(const Stream& stream) const {
  return to_status(cudaGraphLaunch(graph_.get(), stream.get()), "launch a graph");
}

}  // namespace espalier::cuda
