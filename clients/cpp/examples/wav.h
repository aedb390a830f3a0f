// WAV files of one channel and 16 bits, as the examples read and write them.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

struct Sound {
  uint32_t rate_hz = 0;
  std::vector<float> samples;  // full scale at -1 and 1
};

inline uint32_t little_endian(const std::string& data, size_t at, size_t size) {
  uint32_t value = 0;
  for (size_t i = 0; i < size; i++) value |= uint32_t(uint8_t(data.at(at + i))) << (8 * i);
  return value;
}

// Reads a file. Throws std::runtime_error if it is not such a WAV file.
inline Sound read_wav(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + " cannot be read.");
  const std::string data{std::istreambuf_iterator<char>(file), {}};
  if (data.size() < 12 || data.compare(0, 4, "RIFF") || data.compare(8, 4, "WAVE"))
    throw std::runtime_error(path + " is not a WAV file.");
  Sound sound;
  for (size_t at = 12; at + 8 <= data.size();) {
    const std::string name = data.substr(at, 4);
    const size_t size = little_endian(data, at + 4, 4), begin = at + 8;
    if (size > data.size() - begin) throw std::runtime_error(path + " is cut short.");
    if (name == "fmt " && size >= 16) {
      const bool fits = little_endian(data, begin, 2) == 1 && little_endian(data, begin + 2, 2) == 1 &&
                        little_endian(data, begin + 14, 2) == 16;
      if (!fits) throw std::runtime_error(path + " is not 16-bit PCM of one channel.");
      sound.rate_hz = little_endian(data, begin + 4, 4);
    } else if (name == "data") {
      for (size_t i = 0; i + 1 < size; i += 2)
        sound.samples.push_back(float(int16_t(little_endian(data, begin + i, 2))) / 32768.0f);
    }
    at = begin + size + size % 2;
  }
  if (!sound.rate_hz) throw std::runtime_error(path + " is not a WAV file.");
  return sound;
}

inline void write_wav(const std::string& path, const Sound& sound) {
  std::string data;
  const auto put = [&data](uint32_t value, size_t size) {
    for (size_t i = 0; i < size; i++) data.push_back(char(value >> (8 * i)));
  };
  const uint32_t bytes = uint32_t(sound.samples.size() * 2);
  data += "RIFF", put(36 + bytes, 4), data += "WAVEfmt ", put(16, 4), put(1, 2), put(1, 2);
  put(sound.rate_hz, 4), put(sound.rate_hz * 2, 4), put(2, 2), put(16, 2), data += "data", put(bytes, 4);
  for (const float sample : sound.samples) {
    const float clipped = sample < -1.0f ? -1.0f : sample > 1.0f ? 1.0f : sample;
    put(uint16_t(int16_t(clipped * 32767.0f)), 2);
  }
  std::ofstream file(path, std::ios::binary);
  file.write(data.data(), std::streamsize(data.size()));
  if (!file) throw std::runtime_error(path + " cannot be written.");
}
