package system

import "strings"

// RingQueryAddress returns where the ring query service of this machine answers, in plain text and without asking who it is; empty
// for a cluster.
func (s *System) RingQueryAddress() string {
	service, ok := s.services[RingQuery]
	if !ok {
		return ""
	}
	for _, arg := range service.args {
		if address, ok := strings.CutPrefix(arg, "--grpc-bind-address="); ok {
			return address
		}
	}
	return ""
}
