package explain

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/ringquery/query/assignment"
)

// Explanation is what follows from [Facts].
type Explanation struct {
	// Findings say it all to a person, the most important first; there is at least one.
	Findings []Finding
	// Rings are the same for programs: one entry for each ring of the facts, in their order.
	Rings []RingExplanation
}

// Healthy says whether no finding is more than [Info].
func (e Explanation) Healthy() bool { return len(e.Findings) > 0 && e.Findings[0].Severity == Info }

// Finding is one statement about an object.
type Finding struct {
	// Severity says whether somebody has to act.
	Severity Severity
	// Reason is the word for programs.
	Reason Reason
	// Ring that the finding is about; empty: the object itself.
	Ring string
	// Message says what is the case, why, and who will do what next.
	Message string
	// Advice says what a person can do; empty: nothing is to be done.
	Advice string
}

// Severity says whether somebody has to act. Greater ones are worse.
type Severity int

const (
	// Info is as it should be.
	Info Severity = iota + 1
	// Warning is under way, or worth knowing, and should pass by itself.
	Warning
	// Error says that nobody works on the object, or that it does not get where it belongs, and that this may not pass by itself.
	Error
)

// String returns the severity in capitals.
func (s Severity) String() string {
	return map[Severity]string{Info: "INFO", Warning: "WARNING", Error: "ERROR"}[s]
}

// RingExplanation is what one ring makes of the object.
type RingExplanation struct {
	// Ring is its name.
	Ring string
	// Role of the object's resource; empty: the ring does not list it.
	Role resources.Role
	// Covered says whether the ring shards the object.
	Covered bool
	// Key is the partition key; nil if it is not known or there is none.
	Key *key.Key
	// State sums up where the object is; empty if it was not read, or is neither covered nor labelled.
	State assignment.State
	// Shard is the value of the object's shard label; empty: none.
	Shard string
	// Desired is the shard that the ring gives the object to; empty: none.
	Desired string
	// DrainTime is since when its shard has been asked to give it up; zero: it has not, or that is not known.
	DrainTime time.Time
	// Owner is where the object's owner is; nil if no main object of the ring controls it.
	Owner *OwnerExplanation
	// Next is what will happen to the object's labels next.
	Next Step
	// Actor is who will do that; empty if nothing will happen.
	Actor string
}

// OwnerExplanation is where an owner is.
type OwnerExplanation struct {
	types.NamespacedName

	// Resource is the owner's resource.
	Resource resources.Resource
	// Found is Missing also if another object has its name by now.
	Found Found
	// Shard is the value of its shard label; empty: none.
	Shard string
	// Draining says whether its shard has been asked to give it up.
	Draining bool
}

// Step is what will happen to an object's labels next.
type Step string

const (
	// Nothing will happen.
	Nothing Step = "nothing"
	// Assign says that it gets the label of its shard.
	Assign Step = "assign"
	// TakeOver says that it is taken from a shard that does not hold its Lease, once a live read confirms that.
	TakeOver Step = "take over"
	// Drain says that its shard is asked to give it up.
	Drain Step = "drain"
	// Acknowledge says that its shard gives it up.
	Acknowledge Step = "acknowledge"
	// Withdraw says that the request to give it up is taken back.
	Withdraw Step = "withdraw"
	// Release says that the ring's labels are removed.
	Release Step = "release"
	// FollowOwner says that it gets a shard once its owner has one, or has moved.
	FollowOwner Step = "follow owner"
	// AwaitShard says that nothing can happen until a shard holds its Lease.
	AwaitShard Step = "await shard"
)

// Who does something. A shard is "shard " and its name.
const (
	Rebalancer   = "rebalancer"
	LeaseMonitor = "lease monitor"
	You          = "you"
)
