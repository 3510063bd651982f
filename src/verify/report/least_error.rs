//! The report of the least detectable errors: schema and text.

use std::time::Instant;

use serde::Serialize;

use crate::evidence::EvidenceSet;
use crate::kernels::KernelFixtures;
use crate::least_error::{BOTTOM, Least, LeastErrors, SiteRow, TOP};
use crate::mutants::perturbed::Site;
use crate::registry::of_sets;
use k3_core::clauses;
use k3_core::exit::Exit;
use k3_core::host::provenance::Provenance;
use k3_render::{Document, Table, left};

/// Schema name and version of the JSON report.
pub const SCHEMA: &str = "k3-verify/least-error/1";
/// An error above this (log₂) is large: a hundredth and more.
const LARGE: i32 = -6;

/// The report.
#[derive(Debug, Clone, Serialize)]
pub struct LeastErrorReport {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// The process exit code.
    pub exit_code: u8,
    /// The set on which the sites were perturbed.
    pub set: String,
    /// log₂ of the largest and the smallest error tried.
    pub exponents: [i32; 2],
    /// Gates in the order of the ladder.
    pub gates: Vec<GateLine>,
    /// Gates that are red without any error; then nothing above is worth anything.
    pub red_at_zero: Vec<String>,
    /// Sites, clause by clause.
    pub sites: Vec<SiteLine>,
    /// Clauses of the model without a number to perturb.
    pub clauses_without_site: Vec<&'static str>,
    /// Everything that differs from run to run.
    pub provenance: Provenance,
}

/// What one gate sees.
#[derive(Debug, Clone, Serialize)]
pub struct GateLine {
    /// Name of the gate.
    pub id: String,
    /// Sites of which it sees some error.
    pub sites_seen: usize,
    /// The site of which it sees the smallest error.
    pub least_site: Option<&'static str>,
    /// log₂ of that error.
    pub least_exponent: Option<i32>,
}

/// One site.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SiteLine {
    /// Name of the site.
    pub id: &'static str,
    /// The clause that forms the value.
    pub clause: &'static str,
    /// What is off.
    pub what: &'static str,
    /// The gates that see it, in the order of the ladder.
    pub seen_by: Vec<Seen>,
}

/// The smallest error of a site that one gate sees.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Seen {
    /// Name of the gate.
    pub gate: String,
    /// log₂ of the relative error.
    pub exponent: i32,
    /// The relative error.
    pub relative_error: f64,
    /// Whether every larger error of the scan was seen too.
    pub monotone: bool,
}

impl Seen {
    fn text(&self) -> String {
        let luck = if self.monotone { "" } else { "~" };
        format!("2^{}{luck}", self.exponent)
    }
}

impl SiteLine {
    /// From a row of the table.
    #[must_use]
    pub fn of(row: &SiteRow, gates: &[String]) -> Self {
        let seen = |(gate, cell): (&String, &Least)| match *cell {
            Least::Unseen => None,
            Least::At { exponent, monotone } => Some(Seen {
                gate: gate.clone(),
                exponent,
                relative_error: f64::from(exponent).exp2(),
                monotone,
            }),
        };
        Self {
            id: row.site.id,
            clause: row.site.clause,
            what: row.site.what,
            seen_by: gates.iter().zip(&row.cells).filter_map(seen).collect(),
        }
    }

    /// The smallest error that any gate sees, by the first gate to see it.
    #[must_use]
    pub fn least(&self) -> Option<&Seen> {
        // Among equals the first: the gate that is climbed first.
        self.seen_by.iter().min_by_key(|seen| seen.exponent)
    }
}

impl LeastErrorReport {
    /// Searches the sites on the kernel fixtures and a set; `tick` is called after each.
    #[must_use]
    pub fn run(
        kernels: &KernelFixtures,
        set: &EvidenceSet,
        sites: &[Site],
        threads: usize,
        tick: &(dyn Fn() + Sync),
    ) -> Self {
        let start = Instant::now();
        let table = LeastErrors::run(kernels, set, sites, threads, tick);
        let gates = table.gates.iter().enumerate().map(|(place, id)| {
            let seen = table
                .rows
                .iter()
                .filter_map(|row| Some((row.cells[place].exponent()?, row.site.id)));
            let least = seen.clone().min_by_key(|(exponent, _)| *exponent);
            GateLine {
                id: id.clone(),
                sites_seen: seen.count(),
                least_site: least.map(|(_, site)| site),
                least_exponent: least.map(|(exponent, _)| exponent),
            }
        });
        let without = clauses::MODEL
            .iter()
            .map(|clause| clause.id)
            .filter(|id| table.rows.iter().all(|row| row.site.clause != *id));
        let mut report = Self {
            schema: SCHEMA,
            exit_code: 0,
            set: set.name.clone(),
            exponents: [TOP, BOTTOM],
            gates: gates.collect(),
            red_at_zero: table.red_at_zero.clone(),
            sites: table.rows.iter().map(|row| SiteLine::of(row, &table.gates)).collect(),
            clauses_without_site: without.collect(),
            provenance: Provenance::since(start, threads, Vec::new()),
        };
        report.exit_code = report.exit().code();
        report
    }

    /// A gate that is red without any error fails; no sites at all is incomplete.
    #[must_use]
    pub fn exit(&self) -> Exit {
        if !self.red_at_zero.is_empty() {
            Exit::Disagrees
        } else if self.sites.is_empty() {
            Exit::Incomplete
        } else {
            Exit::Conforms
        }
    }

    /// The report for people; nothing in it differs from run to run.
    #[must_use]
    pub fn document(&self) -> Document {
        let mut document = Document::new(
            "k3-verify gates --least-error: how small an error do the gates still catch?",
        );
        document.note(format!(
            "the engine on set {} with one value multiplied by 1+d: the smallest d that turns a \
             gate red, found to a power of two from 2^{TOP} down. - = none does; ~ = a larger d \
             of the scan stayed green. blend: right + d (wrong - right) instead of a factor. \
             kernels: the kernel gate that sees the least.",
            self.set
        ));
        let mut heads = vec![left("clause", 0), left("site", 0), left("kernels", 0)];
        heads.extend(of_sets().filter(|gate| gate.numbers).map(|gate| left(gate.id, 0)));
        heads.push(left("perturbed value", 0));
        document.table(Table::new(heads).with(self.sites.iter().map(|site| self.cells(site))));
        document.gap();
        for gate in &self.gates {
            document.line(match (gate.least_exponent, gate.least_site) {
                (Some(exponent), Some(site)) => format!(
                    "gate {}: sees {} sites, the least 2^{exponent} at {site}",
                    gate.id, gate.sites_seen
                ),
                _ => format!("gate {}: SEES NONE of these sites", gate.id),
            });
        }
        self.findings(&mut document);
        document
    }

    /// One line of the table: the kernel gates as one column, then each oracle gate.
    fn cells(&self, site: &SiteLine) -> Vec<String> {
        let none = || "-".to_owned();
        let kernels = site
            .seen_by
            .iter()
            .filter_map(|seen| Some((seen, seen.gate.strip_prefix("kernels/")?)))
            .min_by_key(|(seen, _)| seen.exponent);
        let mut cells = vec![site.clause.to_owned(), site.id.to_owned()];
        cells.push(kernels.map_or_else(none, |(seen, name)| format!("{} {name}", seen.text())));
        for gate in of_sets().filter(|gate| gate.numbers) {
            let full = gate.full_id(&self.set);
            let seen = site.seen_by.iter().find(|seen| seen.gate == full);
            cells.push(seen.map_or_else(none, Seen::text));
        }
        cells.push(site.what.to_owned());
        cells
    }

    fn findings(&self, document: &mut Document) {
        let names = |chosen: &dyn Fn(&SiteLine) -> bool| {
            let ids = self.sites.iter().filter(|site| chosen(site));
            let ids: Vec<&str> = ids.map(|site| site.id).collect();
            if ids.is_empty() { "none".to_owned() } else { ids.join(" ") }
        };
        let unseen = names(&|site| site.least().is_none());
        let large = names(&|site| site.least().is_some_and(|seen| seen.exponent > LARGE));
        document.gap();
        document.line(format!("sites that no gate sees: {unseen}"));
        document.line(format!("sites of which only errors above 2^{LARGE} are seen: {large}"));
        document.line(format!(
            "clauses of the model without a number to perturb (mutants cover them): {}",
            self.clauses_without_site.join(" ")
        ));
        if !self.red_at_zero.is_empty() {
            let gates = self.red_at_zero.join(" ");
            document.line(format!("INVALID: red without any error: {gates}"));
        }
    }
}
