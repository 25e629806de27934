package api

import (
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
)

// RingOf returns the name of the ring that a request is about, for authorization. It is empty if the request is about several rings, if
// the name is not valid, and for anything that is not a request.
func RingOf(request any) string {
	var name string

	switch r := request.(type) {
	case *pb.GetRingRequest:
		name = r.GetName()
	case *pb.WatchRingRequest:
		name = r.GetName()
	case *pb.LocateRequest:
		name = r.GetRing()
	case *pb.LocateAllRequest:
		name = r.GetQuestion().GetRing()
	case *pb.ExplainRequest:
		name = r.GetRing()
	case *pb.ListAssignmentsRequest:
		name = r.GetRing()
	case *pb.SimulateRequest:
		name = r.GetRing()
	}

	if validateRing(name) != nil {
		return ""
	}

	return name
}
