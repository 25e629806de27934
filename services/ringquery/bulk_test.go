package ringquery_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
)

// ask sends queries while it reads the answers, and returns all answers.
func (s *server) ask(questions []*pb.LocateAllRequest) []*pb.LocateAllResponse {
	s.t.Helper()

	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()

	stream, err := s.LocateAll(ctx)
	require.NoError(s.t, err)

	go func() {
		for _, q := range questions {
			if !assert.NoError(s.t, stream.Send(q)) {
				return
			}
		}
		assert.NoError(s.t, stream.CloseSend())
	}()

	var answers []*pb.LocateAllResponse

	for {
		res, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return answers
		}
		require.NoError(s.t, err)

		answers = append(answers, res)
	}
}

// TestLocateAllAnswersAsLocateDoes compares the answers and errors of both methods for all kinds of queries.
func TestLocateAllAnswersAsLocateDoes(t *testing.T) {
	s := startServer(t)
	ring, ns := s.makeRing(configMaps())
	s.makeShards(ring, ns, "a", "b")
	missing, _ := s.makeRing(v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{{Group: "example.com", Resource: "foos"}}})

	questions := []*pb.LocateRequest{
		{Ring: ring, Object: byKind("ConfigMap", "default", "x")},
		{},
		{Ring: "A b", Object: &pb.ObjectReference{Group: "?", Name: "/"}, NextShards: new(int32(11))},
		{Ring: ring, Object: byKind("Secret", "default", "y"), Owner: ownerByKind("ConfigMap", "x")},
		{Ring: "no-such-ring", Object: byKind("ConfigMap", "default", "x")},
		{Ring: ring, Object: byKind("Pod", "default", "x")},
		{Ring: ring, Object: byKind("Secret", "default", "x")},
		{Ring: ring, Object: byKind("ConfigMap", "", "x")},
		{Ring: missing, Object: &pb.ObjectReference{
			Group: "example.com", Type: &pb.ObjectReference_Resource{Resource: "foos"}, Namespace: "default", Name: "x",
		}},
		{Ring: ring, Object: byKind("ConfigMap", "default", "last"), NextShards: new(int32(0))},
	}

	var all []*pb.LocateAllRequest
	for i, q := range questions {
		all = append(all, &pb.LocateAllRequest{Id: fmt.Sprint("question ", i), Question: q})
	}

	answers := s.ask(all)
	require.Len(t, answers, len(questions))

	seen := map[codes.Code]bool{}

	for i, got := range answers {
		want, err := s.Locate(t.Context(), questions[i])
		st := status.Convert(err)
		seen[st.Code()] = true
		require.Equal(t, all[i].GetId(), got.GetId())

		if err == nil {
			require.Truef(t, proto.Equal(want, got.GetAnswer()), "want %v, got %v", want, got)
			continue
		}

		e := got.GetError()
		require.NotNil(t, e)
		require.EqualValues(t, st.Code(), e.GetCode())
		require.Equal(t, st.Message(), e.GetMessage())
		require.Equal(t, reason(err), e.GetReason())
		require.Equal(t, violations(st), e.GetViolations())
	}
	require.Equal(t, map[codes.Code]bool{
		codes.OK: true, codes.InvalidArgument: true, codes.NotFound: true, codes.FailedPrecondition: true,
	}, seen)
}

// violations returns the field violations in a status, in the format of a LocateError.
func violations(st *status.Status) (all []string) {
	for _, d := range st.Details() {
		if bad, ok := d.(*errdetails.BadRequest); ok {
			for _, v := range bad.GetFieldViolations() {
				all = append(all, v.GetField()+": "+v.GetDescription())
			}
		}
	}

	return all
}

func TestQuestionThatIsNoneDoesNotEndTheStream(t *testing.T) {
	s := startServer(t)
	ring, _ := s.makeRing(configMaps())
	good := &pb.LocateRequest{Ring: ring, Object: byKind("ConfigMap", "default", "x")}

	answers := s.ask([]*pb.LocateAllRequest{
		{Id: strings.Repeat("x", 257), Question: good},
		{Id: "no question"},
		{Id: strings.Repeat("x", 256), Question: good},
		{Question: good},
	})
	require.Len(t, answers, 4)
	require.Equal(t, []string{"id: must have at most 256 bytes"}, answers[0].GetError().GetViolations())
	require.Equal(t, []string{"question: must be set"}, answers[1].GetError().GetViolations())
	require.EqualValues(t, codes.InvalidArgument, answers[1].GetError().GetCode())
	require.Equal(t, "INVALID", answers[1].GetError().GetReason())
	require.Len(t, answers[2].GetId(), 256)
	require.NotNil(t, answers[2].GetAnswer())
	require.Empty(t, answers[3].GetId())
}

func TestManyQuestionsAreAnsweredInOrder(t *testing.T) {
	s := startServer(t)
	ring, ns := s.makeRing(configMaps())
	s.makeShards(ring, ns, "a", "b", "c")

	var all []*pb.LocateAllRequest
	for i := range 5000 {
		all = append(all, &pb.LocateAllRequest{Id: fmt.Sprint(i), Question: &pb.LocateRequest{
			Ring: ring, Object: byKind("ConfigMap", "default", fmt.Sprint("object-", i)), NextShards: new(int32(0)),
		}})
	}

	answers := s.ask(all)
	require.Len(t, answers, len(all))

	for i, got := range answers {
		require.Equal(t, all[i].GetId(), got.GetId())
		require.Equal(t, all[i].GetQuestion().GetObject().GetName(), got.GetAnswer().GetLocations()[0].GetPartitionKey().GetName())
	}
}

// TestClientThatReadsNoAnswersIsNotReadFrom verifies that such a client cannot fill the memory of the server.
func TestClientThatReadsNoAnswersIsNotReadFrom(t *testing.T) {
	s := startServer(t)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	stream, err := s.LocateAll(ctx)
	require.NoError(t, err)

	const questions = 1 << 20 // 256 MiB of them

	var sent atomic.Int64

	ended := make(chan struct{})
	go func() {
		defer close(ended)

		for sent.Load() < questions && stream.Send(&pb.LocateAllRequest{Id: strings.Repeat("x", 256)}) == nil {
			sent.Add(1)
		}
	}()

	before := int64(-1)
	require.Eventually(t, func() bool {
		now := sent.Load()
		stands := now > 0 && now == before
		before = now

		return stands
	}, patience, 20*interval, "it is held up")
	require.Less(t, sent.Load(), int64(questions/10))

	res, err := stream.Recv()
	require.NoError(t, err)
	require.NotNil(t, res.GetError())
	cancel()
	<-ended
}

func TestLocateAllThatIsCancelledEnds(t *testing.T) {
	s := startServer(t)
	before := cancelled(t, "LocateAll")
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := s.LocateAll(ctx)
	require.NoError(t, err)
	require.NoError(t, stream.Send(&pb.LocateAllRequest{}))
	_, err = stream.Recv()
	require.NoError(t, err)
	cancel()

	_, err = stream.Recv()
	require.Equal(t, codes.Canceled, status.Code(err))
	require.Eventually(t, func() bool { return cancelled(t, "LocateAll") > before }, patience, interval)
}
