package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"sync"
	"time"

	pb "antiphon/v1"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const patience = 30 * time.Second

// session is the three calls of one session, with everything that comes back on them.
type session struct {
	prefill  pb.InferenceService_PrefillClient
	generate pb.InferenceService_GenerateClient
	finalize pb.InferenceService_FinalizeClient
	cancels  [3]context.CancelFunc

	mutex     sync.Mutex
	news      chan struct{} // closed and made anew at each answer
	prefilled []*pb.PrefillResponse
	generated []*pb.GenerateResponse
	finalized []*pb.FinalizeResponse
	ends      [3]*status.Status
}

func newSession(client pb.InferenceServiceClient) *session {
	id := make([]byte, 16)
	rand.Read(id)
	one := &session{news: make(chan struct{})}
	var contexts [3]context.Context
	for i := range contexts {
		ctx := metadata.AppendToOutgoingContext(context.Background(), "antiphon-session-id", hex.EncodeToString(id))
		contexts[i], one.cancels[i] = context.WithTimeout(ctx, 2*patience)
	}
	var errors [3]error
	one.prefill, errors[0] = client.Prefill(contexts[0])
	one.generate, errors[1] = client.Generate(contexts[1])
	one.finalize, errors[2] = client.Finalize(contexts[2])
	for _, err := range errors {
		expect(err == nil, "a call cannot begin: %v", err)
	}
	go one.read(0, func() (func(), error) {
		answer, err := one.prefill.Recv()
		return func() { one.prefilled = append(one.prefilled, answer) }, err
	})
	go one.read(1, func() (func(), error) {
		answer, err := one.generate.Recv()
		return func() { one.generated = append(one.generated, answer) }, err
	})
	go one.read(2, func() (func(), error) {
		answer, err := one.finalize.Recv()
		return func() { one.finalized = append(one.finalized, answer) }, err
	})
	return one
}

// read keeps every answer of a call and, at the end, its status.
func (one *session) read(call int, receive func() (func(), error)) {
	for {
		keep, err := receive()
		one.mutex.Lock()
		if err == nil {
			keep()
		} else if err == io.EOF {
			one.ends[call] = status.New(0, "")
		} else {
			one.ends[call] = status.Convert(err)
		}
		close(one.news)
		one.news = make(chan struct{})
		one.mutex.Unlock()
		if err != nil {
			return
		}
	}
}

// until waits until isThere, which is called with the session locked.
func (one *session) until(what string, isThere func() bool) {
	deadline := time.After(patience)
	for {
		one.mutex.Lock()
		found, news := isThere(), one.news
		one.mutex.Unlock()
		if found {
			return
		}
		select {
		case <-news:
		case <-deadline:
			panic(fmt.Sprintf("%s did not come within %s", what, patience))
		}
	}
}

// configure writes the config and waits for SessionReady.
func (one *session) configure() {
	seed, none := uint64(7), uint32(0)
	config := &pb.SessionConfig{
		Mode:   pb.SessionMode_SESSION_MODE_AUDIO,
		Seed:   &seed,
		Duplex: &pb.DuplexConfig{ForceListenCount: &none},
	}
	one.prefill.Send(&pb.PrefillRequest{Payload: &pb.PrefillRequest_Config{Config: config}})
	one.until("SessionReady", func() bool { return len(one.prefilled) == 1 })
}

// run writes a unit of this sound on all three calls.
func (one *session) run(unit uint64, data []byte) {
	audio := &pb.AudioChunk{
		Encoding:     pb.AudioEncoding_AUDIO_ENCODING_PCM_F32LE,
		SampleRateHz: 16000,
		Data:         data,
	}
	input := &pb.PrefillRequest_Duplex{Duplex: &pb.DuplexInput{Audio: audio}}
	one.prefill.Send(&pb.PrefillRequest{Unit: unit, Payload: input})
	say := &pb.GenerateRequest_Run{Run: &pb.GenerateUnit{}}
	one.generate.Send(&pb.GenerateRequest{Unit: unit, Action: say})
	one.finalize.Send(&pb.FinalizeRequest{Unit: unit})
}

func (one *session) halfClose() {
	one.prefill.CloseSend()
	one.generate.CloseSend()
	one.finalize.CloseSend()
}

// ended returns how the three calls ended.
func (one *session) ended() [3]*status.Status {
	one.until("the end of the calls", func() bool {
		return one.ends[0] != nil && one.ends[1] != nil && one.ends[2] != nil
	})
	return one.ends
}

// unitEnds waits for the ends of so many units on Generate.
func (one *session) unitEnds(count int) []*pb.GenerateResponse {
	var found []*pb.GenerateResponse
	one.until("the end of a unit", func() bool {
		found = nil
		for _, answer := range one.generated {
			if answer.GetDone() != nil {
				found = append(found, answer)
			}
		}
		return len(found) >= count
	})
	return found
}

// close gives the session up, whatever state it is in.
func (one *session) close() {
	for _, cancel := range one.cancels {
		cancel()
	}
}
