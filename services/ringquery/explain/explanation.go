package explain

import (
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
)

// How bad a finding is. Greater ones are worse.
const (
	// Info is as it should be.
	Info = pb.Severity_SEVERITY_INFO
	// Warning is under way, or worth knowing, and should pass by itself.
	Warning = pb.Severity_SEVERITY_WARNING
	// Error says that nobody works on the object, or that it does not get where it belongs, and that this may not pass by itself.
	Error = pb.Severity_SEVERITY_ERROR
)

// What will happen to an object's labels next.
const (
	// Nothing will happen.
	Nothing = pb.NextStep_NEXT_STEP_NONE
	// Assign says that it gets the label of its shard.
	Assign = pb.NextStep_NEXT_STEP_ASSIGN
	// TakeOver says that it is taken from a shard that does not hold its Lease, once a live read confirms that.
	TakeOver = pb.NextStep_NEXT_STEP_TAKE_OVER
	// Drain says that its shard is asked to give it up.
	Drain = pb.NextStep_NEXT_STEP_DRAIN
	// Acknowledge says that its shard gives it up.
	Acknowledge = pb.NextStep_NEXT_STEP_ACKNOWLEDGE
	// Withdraw says that the request to give it up is taken back.
	Withdraw = pb.NextStep_NEXT_STEP_WITHDRAW
	// Release says that the ring's labels are removed.
	Release = pb.NextStep_NEXT_STEP_RELEASE
	// FollowOwner says that it gets a shard once its owner has one, or has moved.
	FollowOwner = pb.NextStep_NEXT_STEP_FOLLOW_OWNER
	// AwaitShard says that nothing can happen until a shard holds its Lease.
	AwaitShard = pb.NextStep_NEXT_STEP_AWAIT_SHARD
)

// Who does something. A shard is "shard " and its name.
const (
	Rebalancer   = "rebalancer"
	LeaseMonitor = "lease monitor"
	You          = "you"
)
