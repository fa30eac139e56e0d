//! What commands tell of daemons that work: clients, peers, services, counters with labels.

use std::thread;

use serde_json::Value;

use super::cluster::{Cluster, ECHO, eventually, provide, serve_reversed};

fn json(cluster: &Cluster, rank: u32, arguments: &[&str]) -> Value {
    let output =
        cluster.command(rank).args(arguments).stdout(std::process::Stdio::piped()).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{arguments:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(cluster: &Cluster, rank: u32, arguments: &[&str]) -> String {
    let output =
        cluster.command(rank).args(arguments).stdout(std::process::Stdio::piped()).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn observe(cluster: Cluster) {
    let provider = provide(&cluster.socket(1));
    thread::scope(|scope| {
        scope.spawn(|| serve_reversed(provider));
        let mut clients = [(); 3].map(|()| cluster.client(0));
        for client in &mut clients {
            for _ in 0..5 {
                client.call(client::To::new(1, ECHO, 0), b"abc").unwrap();
            }
            client.call(client::To::new(1, ECHO + 1, 0), b"").unwrap_err();
        }
        let own = std::process::id();
        let listed = json(&cluster, 0, &["clients", "--json"]);
        let listed = listed.as_array().unwrap();
        assert_eq!(listed.len(), 3, "{listed:?}");
        for client in listed {
            assert_eq!((&client["pid"], &client["requests"]), (&own.into(), &6.into()), "{client}");
        }
        // The provider's own connection, which polls.
        let offering = json(&cluster, 1, &["clients", "--json"]);
        let offering = offering.as_array().unwrap();
        assert!(
            offering.iter().any(|it| it["services"] == 1 && it["in_flight"] != 0),
            "{offering:?}"
        );
        let peers = json(&cluster, 0, &["peers", "--json"]);
        let peer = &peers[0];
        assert_eq!((&peer["rank"], &peer["state"]), (&1.into(), &"up".into()), "{peer}");
        assert_eq!((&peer["calls"], &peer["in_flight"]), (&18.into(), &0.into()), "{peer}");
        let back = json(&cluster, 1, &["peers", "--json"]);
        assert_eq!(back[0]["requests"], 18, "{back}");
        let services = json(&cluster, 1, &["services", "--json"]);
        assert_eq!((&services[0]["service"], &services[0]["requests"]), (&ECHO.into(), &15.into()));
        // So do services that lend memory, each with its process.
        let socket = cluster.socket(1);
        let lent = client::bulk::BulkProvider::offer(&socket, ECHO + 2, Default::default());
        let lent = lent.unwrap();
        let services = json(&cluster, 1, &["services", "--json"]);
        let listed: Vec<_> = services.as_array().unwrap().iter().map(|it| &it["service"]).collect();
        assert_eq!(listed, [&Value::from(ECHO), &Value::from(ECHO + 2)], "{services}");
        assert_eq!(services[1]["providers"], 1, "{services}");
        drop(lent);
        for (command, word) in [("clients", "program"), ("peers", "up"), ("services", "requests")] {
            let shown = text(&cluster, 1, &[command]);
            assert!(shown.contains(word), "{command}: {shown}");
        }
        let told = text(&cluster, 0, &["stat", "--openmetrics"]);
        let labels = "daemon=\"default@0\",rank=\"0\"";
        for sample in [
            format!("copyrpc_peer_calls_total{{{labels},peer=\"1\"}} 18\n"),
            format!("copyrpc_peer_up{{{labels},peer=\"1\"}} 1\n"),
            format!("copyrpc_answers_total{{{labels},status=\"Unimplemented\"}} 3\n"),
            "service=\"9\",name=\"\"} 15\n".to_owned(),
            "# TYPE copyrpc_peer_calls counter\n".to_owned(),
            "# TYPE copyrpc_requests_ipc counter\n".to_owned(),
        ] {
            assert!(told.contains(&sample), "{sample} in {told}");
        }
        assert!(told.ends_with("# EOF\n"));
        let families: Vec<_> = told.lines().filter(|line| line.starts_with("# TYPE")).collect();
        let mut unique = families.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), families.len(), "each family once");
        let other = text(&cluster, 0, &["stat", "--job", "other", "--openmetrics"]);
        assert!(!other.contains("default@0"), "{other}");
        drop(clients);
        eventually(|| json(&cluster, 0, &["clients", "--json"]) == Value::Array(Vec::new()));
        cluster.end();
    });
}

#[test]
fn clients_peers_services_and_answers_are_told_by_label() {
    observe(Cluster::new(2));
}

/// Each thread is asked for what it knows.
#[test]
fn those_of_all_threads_are_told() {
    observe(Cluster::with(2, super::threads::TWO));
}
