package api

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
)

// For a new method, somebody must decide which ring its requests are about.
func TestRingOfEveryRequest(t *testing.T) {
	const ring, field = "example", protoreflect.Name("ring")

	about := map[protoreflect.Name]proto.Message{
		"ListRings":       nil, // all
		"GetRing":         &pb.GetRingRequest{Name: ring},
		"WatchRing":       &pb.WatchRingRequest{Name: ring},
		"Locate":          &pb.LocateRequest{Ring: ring},
		"LocateAll":       &pb.LocateAllRequest{Question: &pb.LocateRequest{Ring: ring}},
		"Explain":         &pb.ExplainRequest{Ring: ring},
		"ListAssignments": &pb.ListAssignmentsRequest{Ring: ring},
		"Simulate":        &pb.SimulateRequest{Ring: ring},
	}

	methods := pb.File_clusterring_diagnostics_v1alpha1_diagnostics_service_proto.Services().ByName("DiagnosticsService").Methods()
	for i := range methods.Len() {
		method := methods.Get(i)
		request, known := about[method.Name()]
		require.True(t, known, "%s is not in this table: say in RingOf which ring it is about", method.Name())

		kind, err := protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName())
		require.NoError(t, err)
		require.Empty(t, RingOf(kind.New().Interface()), "%s: nothing is named", method.Name())

		if request != nil {
			require.Equal(t, method.Input().FullName(), request.ProtoReflect().Descriptor().FullName())
			require.Equal(t, ring, RingOf(request), method.Name())
		} else {
			require.Nil(t, method.Input().Fields().ByName(field))
		}
	}
}

func TestRingOfANameThatCannotBe(t *testing.T) {
	for _, name := range []string{"A", "../x", "a b", string(make([]byte, 300))} {
		require.Empty(t, RingOf(&pb.GetRingRequest{Name: name}))
	}
	require.Empty(t, RingOf("something else"))
}
