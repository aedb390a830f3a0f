// Command conformance checks the generated client against golden vectors and a real worker.
//
//	build/conformance VECTORS.json HOST:PORT
//
// It prints one line for each check and exits with 1 if one failed.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"

	"antiphon/codec"
	pb "antiphon/v1"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

var (
	failures int
	silence  = make([]byte, 4*16000)
)

func expect(isTrue bool, format string, values ...interface{}) {
	if !isTrue {
		panic(fmt.Sprintf(format, values...))
	}
}

func check(name string, run func()) {
	defer func() {
		if problem := recover(); problem != nil {
			failures++
			fmt.Printf("FAILED  %s\n        %v\n", name, problem)
		} else {
			fmt.Printf("ok      %s\n", name)
		}
	}()
	run()
}

// expectOK half-closes the session, whose calls all have to end with OK.
func expectOK(one *session) {
	one.halfClose()
	for _, end := range one.ended() {
		expect(end.Code() == codes.OK, "a call ended with %v", end)
	}
}

// expectRefused waits for the end of all three calls, with this status and with its reason in the details.
func expectRefused(one *session, code codes.Code, reason string) {
	for _, end := range one.ended() {
		expect(end.Code() == code, "a call ended with %v", end)
		hasReason := false
		for _, detail := range end.Proto().GetDetails() {
			hasReason = hasReason || bytes.Contains(detail.GetValue(), []byte(reason))
		}
		expect(hasReason, "no ErrorInfo with %s", reason)
	}
}

func checkSessions(client pb.InferenceServiceClient) {
	inSession := func(name string, run func(*session)) {
		check(name, func() {
			one := newSession(client)
			defer one.close()
			one.configure()
			run(one)
		})
	}
	check("GetInfo tells of a ready worker", func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		info, err := client.GetInfo(ctx, &pb.GetInfoRequest{})
		expect(err == nil, "%v", err)
		expect(info.GetState() == pb.WorkerState_WORKER_STATE_READY, "the worker is %v", info.GetState())
		hasAudio := false
		for _, mode := range info.GetModes() {
			hasAudio = hasAudio || mode == pb.SessionMode_SESSION_MODE_AUDIO
		}
		expect(hasAudio, "it has no audio mode")
	})
	inSession("unit 0 is answered by SessionReady with the values that apply", func(one *session) {
		effective := one.prefilled[0].GetReady().GetEffective()
		expect(effective.GetSeed() == 7, "the seed is %d", effective.GetSeed())
		expect(effective.GetDuplex().GetForceListenCount() == 0, "it is another force_listen_count")
		expectOK(one)
	})
	inSession("every unit written ahead has its three answers, in order, and half-closing ends with OK", func(one *session) {
		for unit := uint64(1); unit <= 6; unit++ {
			one.run(unit, silence)
			if unit >= 2 {
				one.until("the end of a unit", func() bool { return len(one.finalized) >= int(unit)-1 })
			}
		}
		expectOK(one)
		ends := one.unitEnds(6)
		expect(len(one.prefilled) == 7 && len(ends) == 6 && len(one.finalized) == 6, "there are more or fewer answers")
		for i := 0; i < 6; i++ {
			unit := uint64(i + 1)
			inOrder := one.prefilled[unit].GetUnit() == unit && ends[i].GetUnit() == unit
			expect(inOrder && one.finalized[i].GetUnit() == unit, "unit %d is not in order", unit)
		}
	})
	inSession("a unit that cannot be used fails alone", func(one *session) {
		one.run(1, make([]byte, 3))
		one.run(2, silence)
		ends := one.unitEnds(2)
		one.until("both answers", func() bool { return len(one.prefilled) == 3 })
		expect(one.prefilled[1].GetError().GetReason() == "AUDIO_INVALID", "unit 1 did not fail by name")
		expect(one.prefilled[2].GetPrefilled() != nil, "unit 2 was not prefilled")
		expect(ends[0].GetDone().GetEnd() == pb.UnitEnd_UNIT_END_FAILED, "unit 1 did not end as failed")
		expect(ends[1].GetDone().GetEnd() != pb.UnitEnd_UNIT_END_FAILED, "unit 2 failed")
		expectOK(one)
	})
	inSession("a cancel overtakes the unit that it names", func(one *session) {
		cancel := &pb.GenerateRequest_Cancel{Cancel: &pb.CancelUnits{}}
		one.generate.Send(&pb.GenerateRequest{Unit: 1, Action: cancel})
		one.run(1, silence)
		end := one.unitEnds(1)[0].GetDone().GetEnd()
		expect(end == pb.UnitEnd_UNIT_END_CANCELLED, "unit 1 ended with %v", end)
		expectOK(one)
	})
	inSession("a gap between units ends all three calls alike", func(one *session) {
		one.run(2, silence)
		expectRefused(one, codes.FailedPrecondition, "UNIT_OUT_OF_ORDER")
	})
	check("a unit before the config ends all three calls alike", func() {
		one := newSession(client)
		defer one.close()
		one.run(1, silence)
		expectRefused(one, codes.FailedPrecondition, "CONFIG_REQUIRED")
	})
	inSession("cancelling one call ends the session", func(one *session) {
		one.cancels[2]()
		ends := one.ended()
		expect(ends[0].Code() == codes.Canceled, "Prefill ended with %v", ends[0])
		expect(ends[1].Code() == codes.Canceled, "Generate ended with %v", ends[1])
	})
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "Usage: conformance VECTORS.json HOST:PORT")
		os.Exit(2)
	}
	rows, err := readVectors(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for i, row := range rows {
		check(fmt.Sprintf("vector %d: %s", i, row.Type), row.check)
	}
	connection, err := grpc.Dial(os.Args[2], grpc.WithInsecure(), grpc.WithDefaultCallOptions(grpc.ForceCodec(codec.Proto{})))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer connection.Close()
	checkSessions(pb.NewInferenceServiceClient(connection))
	if failures > 0 {
		os.Exit(1)
	}
}
