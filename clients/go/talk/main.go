// Command talk asks a worker a spoken question and saves its spoken answer.
//
//	build/talk QUESTION.wav ANSWER.wav [HOST:PORT]
//
// The question is 16 kHz, one channel. The three calls of a session run side by side: each unit of a second is
// written on all of them without waiting, and the worker puts the work in order by its number.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"antiphon/codec"
	pb "antiphon/v1"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

const (
	patience      = 2 * time.Minute
	patienceUnits = 12 // of silence, until the answer must have ended
	largest       = 32 * 1024 * 1024
)

// conversation is the three calls of one session.
type conversation struct {
	prefill  pb.InferenceService_PrefillClient
	generate pb.InferenceService_GenerateClient
	finalize pb.InferenceService_FinalizeClient
	question sound
	rateHz   uint32
	sent     uint64
}

func open(ctx context.Context, client pb.InferenceServiceClient, question sound) (*conversation, error) {
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		return nil, err
	}
	ctx = metadata.AppendToOutgoingContext(ctx, "antiphon-session-id", hex.EncodeToString(id))
	talk := &conversation{question: question}
	var err error
	if talk.prefill, err = client.Prefill(ctx); err != nil {
		return nil, err
	}
	if talk.generate, err = client.Generate(ctx); err != nil {
		return nil, err
	}
	talk.finalize, err = client.Finalize(ctx)
	return talk, err
}

// sendUnit sends the next second of the question, or silence once it is over.
func (talk *conversation) sendUnit() error {
	talk.sent++
	samples := make([]float32, talk.rateHz)
	if begin := (talk.sent - 1) * uint64(talk.rateHz); begin < uint64(len(talk.question.samples)) {
		copy(samples, talk.question.samples[begin:])
	}
	var data bytes.Buffer
	binary.Write(&data, binary.LittleEndian, samples)
	audio := &pb.AudioChunk{
		Encoding:     pb.AudioEncoding_AUDIO_ENCODING_PCM_F32LE,
		SampleRateHz: talk.rateHz,
		Data:         data.Bytes(),
	}
	input := &pb.PrefillRequest_Duplex{Duplex: &pb.DuplexInput{Audio: audio}}
	if err := talk.prefill.Send(&pb.PrefillRequest{Unit: talk.sent, Payload: input}); err != nil {
		return err
	}
	run := &pb.GenerateRequest_Run{Run: &pb.GenerateUnit{}}
	if err := talk.generate.Send(&pb.GenerateRequest{Unit: talk.sent, Action: run}); err != nil {
		return err
	}
	return talk.finalize.Send(&pb.FinalizeRequest{Unit: talk.sent})
}

// halfClose drains the session: units that were accepted are still answered.
func (talk *conversation) halfClose() {
	talk.prefill.CloseSend()
	talk.generate.CloseSend()
	talk.finalize.CloseSend()
}

// listen prints and collects what the model says until the call ends; isOver is set when the answer has ended.
func (talk *conversation) listen(isOver *int32) ([]float32, error) {
	var spoken []float32
	for {
		said, err := talk.generate.Recv()
		if err == io.EOF {
			return spoken, nil
		}
		if err != nil {
			return spoken, err
		}
		fmt.Print(said.GetText().GetText())
		if data := said.GetAudio().GetData(); len(data) > 0 {
			piece := make([]float32, len(data)/4)
			binary.Read(bytes.NewReader(data), binary.LittleEndian, piece)
			spoken = append(spoken, piece...)
		}
		if said.GetGoAway() != nil || said.GetDone().GetEnd() == pb.UnitEnd_UNIT_END_TURN {
			atomic.StoreInt32(isOver, 1)
		}
	}
}

func run(questionFile, answerFile, target string) error {
	question, err := readWav(questionFile)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	options := grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largest), grpc.ForceCodec(codec.Proto{}))
	connection, err := grpc.DialContext(ctx, target, grpc.WithInsecure(), options)
	if err != nil {
		return err
	}
	defer connection.Close()
	talk, err := open(ctx, pb.NewInferenceServiceClient(connection), question)
	if err != nil {
		return err
	}
	config := &pb.PrefillRequest_Config{Config: &pb.SessionConfig{Mode: pb.SessionMode_SESSION_MODE_AUDIO}}
	if err := talk.prefill.Send(&pb.PrefillRequest{Payload: config}); err != nil {
		return err
	}
	opened, err := talk.prefill.Recv()
	if err != nil {
		return err
	}
	ready := opened.GetReady()
	if talk.rateHz = ready.GetInputSampleRateHz(); question.rateHz != talk.rateHz {
		return fmt.Errorf("%s has %d Hz; %s hears %d Hz.", questionFile, question.rateHz, ready.GetModel(), talk.rateHz)
	}

	var isOver int32
	heard := make(chan error, 1)
	var spoken []float32
	go func() {
		var err error
		spoken, err = talk.listen(&isOver)
		heard <- err
	}()
	go func() { // all three calls of a session have to be read
		for {
			answer, err := talk.prefill.Recv()
			if err != nil {
				return
			}
			if problem := answer.GetError(); problem != nil {
				fmt.Fprintf(os.Stderr, "unit %d: %s\n", answer.GetUnit(), problem.GetMessage())
			}
		}
	}()
	for ahead := uint32(0); ahead < ready.GetMaxUnitsInFlight(); ahead++ {
		if err := talk.sendUnit(); err != nil {
			break // Recv says why
		}
	}
	most := uint64(len(question.samples))/uint64(talk.rateHz) + patienceUnits
	hasEnded := false
	for {
		if _, err := talk.finalize.Recv(); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		if atomic.LoadInt32(&isOver) == 0 && talk.sent <= most && !hasEnded {
			talk.sendUnit() // one unit is closed: there is room for another
		} else if !hasEnded {
			hasEnded = true
			talk.halfClose()
		}
	}
	err = <-heard
	fmt.Println()
	if err != nil || len(spoken) == 0 {
		return err
	}
	return writeWav(answerFile, sound{ready.GetOutputSampleRateHz(), spoken})
}

func main() {
	if len(os.Args) < 3 || len(os.Args) > 4 {
		fmt.Fprintln(os.Stderr, "Usage: talk QUESTION.wav ANSWER.wav [HOST:PORT]")
		os.Exit(2)
	}
	target := "localhost:50051"
	if len(os.Args) == 4 {
		target = os.Args[3]
	}
	if err := run(os.Args[1], os.Args[2], target); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
