// Package sizing computes how many shards a load needs, and what sharding costs. docs/sizing.md explains the formulas.
package sizing

import (
	"math"
	"strconv"
	"time"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/advise"
)

// Figures of docs/performance.md, by the row that has them. CPU is in milliseconds, memory in MiB.
const (
	restCPU, restMemory, restRequests = 6, 175, 2.5 // per second: What do the services use at rest?
	createCPU, updateCPU              = 0.083, 0.08 // assigner CPU per admission, 50 shards; What do updates cost?
	deathRate                         = 1026        // objects moved per second after a shard's death, 10000 objects
	joinRate                          = 624         // join: objects drained and released to the new shard per second
	moveCPU, rebalancerCPU            = 1.29, 0.24  // API server CPU per moved object, rebalancer CPU per moved object
	moveMemory                        = 29          // rebalancer memory at its peak, minus that of note 12 without objects
	auditCPU, auditBudget             = 0.025, 10   // per object, and per second: note 14
	bound                             = 1.049       // note 3
	renewals                          = 0.5         // per second and shard: docs/operations.md, Short Leases
	partitions                        = 16384       // of a ring
)

// MostShards is how many shards a ring may have.
const MostShards = 2000

// Load is what the shards of a ring have to do.
type Load struct {
	Objects          int64
	ChangesPerSecond float64
	Workers          int           // of a shard
	Work             time.Duration // for which a change keeps a worker busy
}

// Figure is a property of a ring, with its name for programs and its title for people.
type Figure struct {
	Name, Title string
	Value       float64
	Unit        string
}

// String returns the value with its unit.
func (f Figure) String() string {
	if f.Unit == "s" {
		return advise.Seconds(f.Value)
	}

	return strconv.FormatFloat(math.Round(100*f.Value)/100, 'f', -1, 64) + f.Unit
}

// Figures returns how shards carry the load, what that costs, and settings. fullest is the part of the objects that the
// fullest of them has, and moved how many objects move when shards join or leave.
func (l Load) Figures(shards int, fullest, moved float64) []Figure {
	objects, n, changes, create := float64(l.Objects), float64(shards), l.ChangesPerSecond, createCPU*l.ChangesPerSecond
	death, audit := fullest*objects/deathRate, max(60, auditCPU*objects/auditBudget)

	return []Figure{
		{"shards", "shards", n, ""},
		{"shardsNeeded", "shards that the workers need for this load", float64(l.Needed()), ""},
		{"fullestObjects", "objects of the fullest shard", math.Round(fullest * objects), ""},
		{"fullestBusyPercent", "its busy workers", math.Round(100 * fullest * changes * l.Work.Seconds() / float64(l.Workers)), " %"},
		{"servicesCPUMillicores", "CPU of the services, if each change is a create", restCPU + create, " ms/s"},
		{"apiServerCPUMillicores", "CPU of the API server, to compare labels of changes", updateCPU * changes, " ms/s"},
		{"servicesMemoryMiB", "memory of the services, while objects move", restMemory + moveMemory, " MiB"},
		{"requestsPerSecond", "requests of services and shards, at rest", restRequests + renewals*n, "/s"},
		{"deathSeconds", "moves of the fullest shard, once its death is known", death, "s"},
		{"moveSeconds", "moves when these shards join or leave", moved / joinRate, "s"},
		{"moveCPUSeconds", "CPU for that", moved * (2*moveCPU + rebalancerCPU) / 1000, "s"}, // two writes
		{"auditSeconds", "time between audits, by default", audit, "s"},
		// An audit takes an hour at most, a move a minute, and one assigner may fail. --objects-qps limits 32 writes.
		{"auditBudget", "rebalancer --audit-budget (default 0.01)", max(auditBudget/1000.0, math.Ceil(audit/3600)/100), ""},
		{"concurrentWrites", "rebalancer --concurrent-writes (default 16)", 16 * min(max(1, math.Ceil(death/60)), 2), ""},
		{"assignerReplicas", "replicas of assigner (default 2)", 1 + math.Ceil(max(1, create)/1000/advise.Aim), ""},
	}
}

// Needed returns how many shards the load needs, one more than a ring may have if these are too few.
func (l Load) Needed() int {
	n, busy, most := 1, l.ChangesPerSecond*l.Work.Seconds(), l.MostBusy()*float64(l.Workers)
	for n <= MostShards && busy*Fullest(l.Objects, n) > most {
		n++
	}

	return n
}

// MostBusy returns the part of a shard's workers that may be busy: advise is content, and 99 % of the changes wait for
// a second at most, if they come by chance, take the same time, and all find the workers busy.
func (l Load) MostBusy() float64 {
	return min(advise.Full, max(0.1, 1-math.Log(100)/2*l.Work.Seconds()/float64(l.Workers)))
}

// Fullest returns the part of the objects that the fullest of n shards has on average. Chance decides how many
// partitions shards have, up to the bound, and how many objects partitions.
func Fullest(objects int64, n int) float64 {
	shards, mean, each := float64(n), partitions/float64(n), 0.0
	if objects > 0 {
		each = 1 / float64(objects)
	}

	highest := math.Sqrt2 * math.Erfinv(2*(shards-0.375)/(shards+0.25)-1) // of n normal numbers, by Blom
	free := highest * math.Sqrt((shards-1)*(1.0/partitions+each))
	bounded := math.Ceil(bound*mean)/mean - 1 + highest*math.Sqrt((shards-1)*each)

	return min(1, (1+min(free, bounded))/shards)
}
