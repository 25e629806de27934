package explain

import (
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
)

// Short names of the enums of the API, which documents them. A greater severity is worse.
const (
	Info    = pb.Severity_SEVERITY_INFO
	Warning = pb.Severity_SEVERITY_WARNING
	Error   = pb.Severity_SEVERITY_ERROR

	Nothing     = pb.NextStep_NEXT_STEP_NONE
	Assign      = pb.NextStep_NEXT_STEP_ASSIGN
	TakeOver    = pb.NextStep_NEXT_STEP_TAKE_OVER
	Drain       = pb.NextStep_NEXT_STEP_DRAIN
	Acknowledge = pb.NextStep_NEXT_STEP_ACKNOWLEDGE
	Withdraw    = pb.NextStep_NEXT_STEP_WITHDRAW
	Release     = pb.NextStep_NEXT_STEP_RELEASE
	FollowOwner = pb.NextStep_NEXT_STEP_FOLLOW_OWNER
	AwaitShard  = pb.NextStep_NEXT_STEP_AWAIT_SHARD

	NotRead   = pb.Found_FOUND_UNSPECIFIED // nobody tried
	Read      = pb.Found_FOUND_YES
	Missing   = pb.Found_FOUND_NO
	Forbidden = pb.Found_FOUND_FORBIDDEN
)

// Actors that take the next step. The actor "shard NAME" is a shard.
const (
	Rebalancer   = "rebalancer"
	LeaseMonitor = "lease monitor"
	You          = "you"
)
