// Asks a worker a spoken question and saves its spoken answer.
//
//     build/talk QUESTION.wav ANSWER.wav [HOST:PORT]
//
// The question is 16 kHz, one channel. The three calls of a session run side by side: each unit of a second is
// written on all of them without waiting, and the worker puts the work in order by its number.

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <random>
#include <thread>

#include "antiphon/v1/inference_service.grpc.pb.h"
#include "wav.h"

namespace pb = antiphon::v1;

constexpr uint64_t kPatienceUnits = 12;  // of silence, until the answer must have ended

static std::string new_session_id() {
  std::random_device random;
  char id[33];
  std::snprintf(id, sizeof id, "%08x%08x%08x%08x", random(), random(), random(), random());
  return id;
}

static std::string bytes_of(const std::vector<float>& samples) {
  return {reinterpret_cast<const char*>(samples.data()), samples.size() * sizeof(float)};  // little-endian machines
}

static int talk(const std::string& question_file, const std::string& answer_file, const std::string& target) {
  const Sound question = read_wav(question_file);
  const auto stub = pb::InferenceService::NewStub(grpc::CreateChannel(target, grpc::InsecureChannelCredentials()));
  grpc::ClientContext contexts[3];
  const std::string session_id = new_session_id();
  for (auto& context : contexts) {
    context.AddMetadata("antiphon-session-id", session_id);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
  }
  const auto prefill = stub->Prefill(&contexts[0]);
  const auto generate = stub->Generate(&contexts[1]);
  const auto finalize = stub->Finalize(&contexts[2]);

  pb::PrefillRequest config;
  config.mutable_config()->set_mode(pb::SESSION_MODE_AUDIO);
  prefill->Write(config);
  pb::PrefillResponse opened;
  bool is_ready = prefill->Read(&opened) && opened.has_ready();
  const uint32_t rate_hz = opened.ready().input_sample_rate_hz();
  Sound answer;
  answer.rate_hz = opened.ready().output_sample_rate_hz();
  std::string problem;
  if (is_ready && question.rate_hz != rate_hz) {
    problem = question_file + " has " + std::to_string(question.rate_hz) + " Hz; the model hears " +
              std::to_string(rate_hz) + " Hz.";
    is_ready = false;
  }

  // What a unit says is read on a thread of its own: all three calls of a session have to be read.
  std::atomic<bool> is_over{!is_ready};
  std::thread speaking([&] {
    for (pb::GenerateResponse said; generate->Read(&said);) {
      std::printf("%s", said.text().text().c_str());
      std::fflush(stdout);
      const std::string& data = said.audio().data();
      const size_t before = answer.samples.size();
      answer.samples.resize(before + data.size() / sizeof(float));
      std::memcpy(answer.samples.data() + before, data.data(), data.size() / sizeof(float) * sizeof(float));
      if (said.has_go_away() || said.done().end() == pb::UNIT_END_TURN) is_over = true;
    }
  });
  std::thread hearing([&] {
    for (pb::PrefillResponse heard; prefill->Read(&heard);)
      if (heard.has_error()) std::fprintf(stderr, "unit %llu: %s\n", (unsigned long long)heard.unit(),
                                          heard.error().message().c_str());
  });

  uint64_t sent = 0;
  const auto send_unit = [&] {
    const uint64_t unit = ++sent;
    std::vector<float> second(rate_hz, 0.0f);
    const size_t begin = std::min(size_t((unit - 1) * rate_hz), question.samples.size());
    const size_t end = std::min(begin + rate_hz, question.samples.size());
    std::copy(question.samples.begin() + long(begin), question.samples.begin() + long(end), second.begin());
    pb::PrefillRequest input;
    input.set_unit(unit);
    auto* audio = input.mutable_duplex()->mutable_audio();
    audio->set_encoding(pb::AUDIO_ENCODING_PCM_F32LE);
    audio->set_sample_rate_hz(rate_hz);
    audio->set_data(bytes_of(second));
    pb::GenerateRequest run;
    run.set_unit(unit);
    run.mutable_run();
    pb::FinalizeRequest close;
    close.set_unit(unit);
    return prefill->Write(input) && generate->Write(run) && finalize->Write(close);
  };
  for (uint32_t ahead = 0; is_ready && ahead < opened.ready().max_units_in_flight(); ahead++) send_unit();
  for (pb::FinalizeResponse closed; is_ready && finalize->Read(&closed);) {  // there is room for another unit
    const bool is_too_late = sent > question.samples.size() / rate_hz + kPatienceUnits;
    if (is_over || is_too_late || !send_unit()) break;
  }

  // Half-closing drains the session: units that were accepted are still answered.
  prefill->WritesDone(), generate->WritesDone(), finalize->WritesDone();
  for (pb::FinalizeResponse closed; finalize->Read(&closed);) {
  }
  speaking.join(), hearing.join();
  std::printf("\n");
  const grpc::Status statuses[] = {prefill->Finish(), generate->Finish(), finalize->Finish()};
  for (const auto& status : statuses)  // the worker ends all three calls alike: one message is enough
    if (!status.ok() && problem.empty()) problem = status.error_message();
  if (!problem.empty()) throw std::runtime_error(problem);
  if (!answer.samples.empty()) write_wav(answer_file, answer);
  return 0;
}

int main(int count, char** given) {
  if (count < 3 || count > 4) {
    std::fprintf(stderr, "Usage: talk QUESTION.wav ANSWER.wav [HOST:PORT]\n");
    return 2;
  }
  try {
    return talk(given[1], given[2], count == 4 ? given[3] : "localhost:50051");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
