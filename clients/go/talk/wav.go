package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
)

// sound is mono audio with full scale at -1 and 1.
type sound struct {
	rateHz  uint32
	samples []float32
}

// readWav reads a WAV file of one channel and 16 bits.
func readWav(path string) (sound, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return sound{}, err
	}
	if len(data) < 12 || string(data[:4]) != "RIFF" || string(data[8:12]) != "WAVE" {
		return sound{}, fmt.Errorf("%s is not a WAV file.", path)
	}
	var read sound
	for rest := data[12:]; len(rest) >= 8; {
		name, size := string(rest[:4]), int(binary.LittleEndian.Uint32(rest[4:]))
		rest = rest[8:]
		if size > len(rest) {
			return sound{}, fmt.Errorf("%s is cut short.", path)
		}
		chunk := rest[:size]
		switch {
		case name == "fmt " && size >= 16:
			number := func(at int) uint16 { return binary.LittleEndian.Uint16(chunk[at:]) }
			if number(0) != 1 || number(2) != 1 || number(14) != 16 {
				return sound{}, fmt.Errorf("%s is not 16-bit PCM of one channel.", path)
			}
			read.rateHz = binary.LittleEndian.Uint32(chunk[4:])
		case name == "data":
			for at := 0; at+1 < size; at += 2 {
				read.samples = append(read.samples, float32(int16(binary.LittleEndian.Uint16(chunk[at:])))/32768)
			}
		}
		rest = rest[min(size+size%2, len(rest)):]
	}
	if read.rateHz == 0 {
		return sound{}, fmt.Errorf("%s is not a WAV file.", path)
	}
	return read, nil
}

func writeWav(path string, written sound) error {
	size := uint32(2 * len(written.samples))
	var file bytes.Buffer
	put := func(values ...interface{}) {
		for _, value := range values {
			binary.Write(&file, binary.LittleEndian, value)
		}
	}
	put([]byte("RIFF"), 36+size, []byte("WAVEfmt "), uint32(16), uint16(1), uint16(1))
	put(written.rateHz, 2*written.rateHz, uint16(2), uint16(16), []byte("data"), size)
	for _, sample := range written.samples {
		if sample > 1 {
			sample = 1
		} else if sample < -1 {
			sample = -1
		}
		put(int16(sample * 32767))
	}
	return os.WriteFile(path, file.Bytes(), 0o644)
}

func min(one, other int) int {
	if one < other {
		return one
	}
	return other
}
